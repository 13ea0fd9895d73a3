"""Keeps committed offsets where nothing expires.

Brokers delete the committed offsets of a group without members after `offsets.retention.minutes`, a week by default. So each
application has a compacted topic with copies of its commits. A running worker commits several times a second, so its commits
are not copied: only the one with which it takes a task over, and the one with which it lets it go. Every other commit is
copied. Commit and copy are one transaction, so a copy is of the last commit, unless it names an owner: that worker has
continued from there, and only its committed offsets show how far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Natural, UnreadableError, foreign_decoder
from riverrun.errors import StateError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.process import SystemClock
from riverrun.hosting.topic_ids import committed_ids, found_ids, unread
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

_LONGEST = 1_000_000
# Names with a slash are notes; those of inputs have none, as no topic's name has one.
_NOTE = "/"
_BEGUN = f"begun{_NOTE}"
_decode = foreign_decoder(tuple[Natural, str], _LONGEST)


class KeptOffsets:
    """The copies of an application's commits."""

    def __init__(self, admin: Admin, application_id: str) -> None:
        self._admin = admin
        self._application_id = application_id
        self._topic = kept_offsets_name(application_id)
        self._control = ControlTopic(admin, self._topic)

    def read(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the copies by input, and how far staging topics of logs are published; empty if nothing was ever committed."""
        found = {}
        for name, value in self._control.read().items():
            if _NOTE in name:
                continue
            try:
                found[TopicPartition.parse(name)] = CommittedOffset(*_decode(value))
            except (UnreadableError, ValueError) as error:
                message = f"Record {shortened(name)} of topic {self._topic} cannot be read: {error}"
                raise StateError(message, hint="If a newer version of Riverrun wrote it, use that version.") from error
        return found

    def last(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return the copies that nobody has continued from, of topics that were not deleted and created again since."""
        wanted = set(tps)
        found = {tp: kept for tp, kept in (self.read() if wanted else {}).items() if tp in wanted and is_last(kept)}
        present = found_ids(self._admin, {tp.topic for tp in found})
        noted = {tp: committed_ids({tp: kept}, self._application_id) for tp, kept in found.items()}
        known = {tp: noted[tp].get(tp.topic, present[tp.topic]) for tp in found if tp.topic in present}
        return {tp: found[tp] for tp, topic_id in known.items() if topic_id == present[tp.topic]}

    def noted(self, note: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return how far topics are written that an operation fills, as it has kept that with metadata `<note>:...`."""
        kept = self.read()
        noted = {tp: kept[tp] for tp in tps if tp in kept and kept[tp].metadata.startswith(f"{note}:")}
        return {tp: CommittedOffset(at.offset, at.metadata.removeprefix(f"{note}:")) for tp, at in noted.items()}

    def knows_nothing(self) -> bool:
        """Return whether no progress was ever kept, and no rows were imported."""
        return all(name.startswith(_BEGUN) for name in self._control.read())

    def begun(self) -> dict[str, int]:
        """Return what was noted by `note_begun`."""
        return {
            name.removeprefix(_BEGUN): int(value)
            for name, value in self._control.read().items()
            if name.startswith(_BEGUN)
        }

    def note_begun(self, counts: Mapping[str, int]) -> None:
        """Note how many partitions topics had when the application began to read them."""
        known = self.begun()
        # Several hosts may write: of those that begin at the same time, the last one counts.
        if changed := {_BEGUN + name: b"%d" % count for name, count in counts.items() if known.get(name) != count}:
            self._control.put(changed)

    def note_import(self, store: str) -> None:
        """Note that a store has rows which no input accounts for."""
        self._control.put({f"imported{_NOTE}{store}": b"1"})

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Commit where inputs are begun, of which nothing was processed, while no host processes the application."""
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
    """Commit offsets, and copies of some of them, with the records sent so far. Errors are those of `producer.commit`."""
    if kept:
        keep(producer, application_id, kept)
    producer.commit(offsets, application_id)


def keep(producer: TransactionalProducer, application_id: str, kept: Mapping[TopicPartition, tuple[int, str]]) -> None:
    """Send positions to the topic of copies, within the transaction of a producer."""
    topic, now_ms, sender = kept_offsets_name(application_id), SystemClock().now_ms(), producer.new_sender()
    # The records are of now, so no limits of record times have to be asked for.
    sender.learn_limits({topic: TimeLimits()})
    for tp, commit in kept.items():
        sender.send(topic, str(tp).encode(), msgspec.json.encode(commit), now_ms, (), 0)


def is_last(kept: CommittedOffset) -> bool:
    """Return whether nothing was committed after a commit that was copied: it names no owner that could have continued."""
    return not OffsetMetadata.decode(kept.metadata).owner
