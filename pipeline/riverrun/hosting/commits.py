"""Commits of tasks: the ids of topics in their metadata, and copies of commits where nothing expires.

Brokers give each topic an id, by which topics that were deleted and created again are noticed: offsets and state are of the
earlier one. A task commits the ids of the topics that it depends on in the metadata of its offsets (`OffsetMetadata.topics`).

Brokers delete the committed offsets of a group without members after `offsets.retention.minutes`, a week by default. So each
application has a compacted topic with copies of its commits. A running worker commits several times a second, so its commits
are not copied: only the one with which it takes a task over, and the one with which it lets it go. Every other commit is
copied. Commit and copy are one transaction, so a copy is of the last commit, unless it names an owner: that worker has gone on
from there, and only its committed offsets tell how far.
"""

from __future__ import annotations

import base64
import struct
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Natural, UnreadableError, foreign_decoder
from riverrun.errors import StateError, TopicError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.process import SystemClock
from riverrun.kafka.admin import CommittedOffset, TopicSpec
from riverrun.kafka.sending import TimeLimits
from riverrun.records import TopicPartition, shortened
from riverrun.runtime.layout import kept_offsets_name
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.producer import TransactionalProducer

MOST_TOPICS = 8
"""With each input, a task commits the ids of so many topics at most, as metadata is written at each commit."""


def found_ids(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """Return the ids of those topics that exist, as 64 bits each, in the given order.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    wanted = list(topics)
    found = short_ids(admin.topic_ids(wanted))
    return {topic: found[topic] for topic in wanted if topic in found}


def short_ids(ids: Mapping[str, str]) -> dict[str, int]:
    """Return the second half of each id as a number; ids are random. Topics without an id (of old brokers) are left out."""
    found = {topic: struct.unpack(">q", base64.urlsafe_b64decode(f"{text}==")[8:16])[0] for topic, text in ids.items()}
    return {topic: short for topic, short in found.items() if short}


def committed_ids(committed: Mapping[TopicPartition, tuple[int, str]], application_id: str) -> dict[str, int]:
    """Return the ids that tasks have committed with their offsets, by full topic name."""
    found: dict[str, int] = {}
    for _offset, metadata in committed.values():
        for name, topic_id in OffsetMetadata.decode(metadata).topics.items():
            found[application_id + name if name.startswith("-") else name] = topic_id
    return found


def ids_to_commit(tp: TopicPartition, ids: Mapping[str, int], application_id: str) -> dict[str, int]:
    """Return the ids to commit with the offset of an input, by short name: its own topic first.

    Args:
        tp: The input.
        ids: Ids of the topics that its task depends on, the most important first.
        application_id: The prefix of internal topics, which short names leave out.
    """
    own = {tp.topic: ids[tp.topic]} if tp.topic in ids else {}
    chosen = dict(islice((own | dict(ids)).items(), MOST_TOPICS))
    prefix = f"{application_id}-"
    return {topic[len(prefix) - 1 :] if topic.startswith(prefix) else topic: id_ for topic, id_ in chosen.items()}


def unread(tp: TopicPartition, ids: Mapping[str, int], application_id: str) -> str:
    """Return the metadata to commit with the offset at which an input is begun; for the arguments see `ids_to_commit`."""
    return OffsetMetadata(-1, topics=ids_to_commit(tp, ids, application_id)).encode()


def require_same(application: Application, known: Iterable[tuple[str, int]], present: Mapping[str, int]) -> None:
    """Make sure that topics are those from which an application has read.

    Args:
        application: The application.
        known: Topics with the ids that they had when the application read them.
        present: Ids of topics now. Topics that are missing are other checks' concern.

    Raises:
        TopicError: If a topic was deleted and created again.
    """
    changed = sorted({topic for topic, topic_id in known if present.get(topic, topic_id) != topic_id})
    if not changed:
        return
    are, each = ("Topics", "have") if len(changed) > 1 else ("Topic", "has")
    message = (
        f"{are} {', '.join(changed)} {each} been deleted and created again since {application.id} began to read:"
        " its offsets and its state belong to the earlier records"
    )
    raise TopicError(message, hint=_hint(application, changed))


def _hint(application: Application, changed: Iterable[str]) -> str:
    topology, name, version = application.topology, application.config.name, application.version
    if topology.external_topics.difference(topology.source_topics).issuperset(changed):
        return "Start again: the global table is then filled from its topic."
    return (
        f"To compute everything again from the topics as they are now: riverrun reset {name} --version {version}. It deletes"
        " the state. A new version (riverrun release) begins at the first records as well, and this one's state stays as it is."
    )


_LONGEST = 1_000_000
_decode = foreign_decoder(tuple[Natural, str], _LONGEST)


class KeptOffsets:
    """The copies of an application's commits.

    Args:
        admin: Asks the brokers.
        application_id: The application.
    """

    def __init__(self, admin: Admin, application_id: str) -> None:
        self._admin = admin
        self._application_id = application_id
        self._topic = kept_offsets_name(application_id)
        self._control = ControlTopic(admin, self._topic)

    def read(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the copies by input; empty if nothing was ever committed.

        Raises:
            StateError: If one cannot be read.
            BrokerError: If brokers do not answer.
        """
        found = {}
        for name, value in self._control.read().items():
            try:
                found[TopicPartition.parse(name)] = CommittedOffset(*_decode(value))
            except (UnreadableError, ValueError) as error:
                message = f"Record {shortened(name)} of topic {self._topic} cannot be read: {error}"
                raise StateError(message, hint="If a newer version of Riverrun wrote it, use that version.") from error
        return found

    def last(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return the copies that nobody has gone on from, of topics that were not deleted and created again since.

        Args:
            tps: Inputs without committed offsets.

        Raises:
            StateError: If a copy cannot be read.
            BrokerError: If brokers do not answer.
        """
        wanted = set(tps)
        found = {tp: kept for tp, kept in (self.read() if wanted else {}).items() if tp in wanted and is_last(kept)}
        present = found_ids(self._admin, {tp.topic for tp in found})
        noted = {tp: committed_ids({tp: kept}, self._application_id) for tp, kept in found.items()}
        known = {tp: noted[tp].get(tp.topic, present[tp.topic]) for tp in found if tp.topic in present}
        return {tp: found[tp] for tp, topic_id in known.items() if topic_id == present[tp.topic]}

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Commit where inputs are begun, of which nothing was processed, while no host processes the application.

        Raises:
            BrokerError: If brokers refuse or do not answer.
        """
        if starts:
            ids = found_ids(self._admin, {tp.topic for tp in starts})
            self._admin.alter_offsets(self._application_id, starts)
            begun = {tp: (offset, unread(tp, ids, self._application_id)) for tp, offset in starts.items()}
            self._control.put({str(tp): msgspec.json.encode(commit) for tp, commit in begun.items()})


def kept_offsets_topic(application: Application) -> TopicSpec:
    """Return the topic, to be created with the internal topics of an application."""
    streams = application.config.streams
    config = {
        **streams.topic,
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "message.timestamp.type": "CreateTime",
    }
    return TopicSpec(kept_offsets_name(application.id), 1, config, streams.replication_factor)


def commit_and_keep(
    producer: TransactionalProducer,
    application_id: str,
    offsets: Mapping[TopicPartition, tuple[int, str]],
    kept: Mapping[TopicPartition, tuple[int, str]],
) -> None:
    """Commit offsets, and copies of some of them, with the records sent so far. Errors are those of `producer.commit`.

    Args:
        producer: The producer.
        application_id: The application.
        offsets: Offset and metadata to commit, per input.
        kept: Those of them that are copied.
    """
    if kept:
        topic, now_ms, sender = kept_offsets_name(application_id), SystemClock().now_ms(), producer.new_sender()
        sender.learn_limits({topic: TimeLimits()})
        for tp, commit in kept.items():
            sender.send(topic, str(tp).encode(), msgspec.json.encode(commit), now_ms, (), 0)
    producer.commit(offsets, application_id)


def is_last(kept: CommittedOffset) -> bool:
    """Return whether nothing was committed after a commit that was copied: it names no owner that could have gone on."""
    return not OffsetMetadata.decode(kept.metadata).owner
