"""Ids of topics, by which topics that were deleted and created again are noticed: offsets and state are of the earlier one.

A task commits the ids of the topics that it depends on in the metadata of its offsets (`OffsetMetadata.topics`). Its local
state notes those of its inputs, since brokers delete committed offsets with a topic.
"""

from __future__ import annotations

import base64
import struct
from itertools import islice
from typing import TYPE_CHECKING

from riverrun.errors import TopicError
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition

# The ids are in the metadata of each input, which is written at each commit and limited to 4 KiB.
MOST_TOPICS = 8


def found_ids(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """Return the ids of those topics that exist, as 64 bits each, in the given order."""
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
            # Short names leave out the application's id, with which internal topics begin.
            found[application_id + name if name.startswith("-") else name] = topic_id
    return found


def ids_to_commit(tp: TopicPartition, ids: Mapping[str, int], application_id: str) -> dict[str, int]:
    """Return the ids to commit with the offset of an input, by short name; `ids` has the most important ones first."""
    own = {tp.topic: ids[tp.topic]} if tp.topic in ids else {}
    chosen = dict(islice((own | dict(ids)).items(), MOST_TOPICS))
    prefix = f"{application_id}-"
    return {topic[len(prefix) - 1 :] if topic.startswith(prefix) else topic: id_ for topic, id_ in chosen.items()}


def unread(tp: TopicPartition, ids: Mapping[str, int], application_id: str) -> str:
    """Return the metadata to commit with the offset at which an input is begun; for the arguments see `ids_to_commit`."""
    return OffsetMetadata(-1, topics=ids_to_commit(tp, ids, application_id)).encode()


def require_same(application: Application, known: Iterable[tuple[str, int]], present: Mapping[str, int]) -> None:
    """Make sure that topics are those from which an application has read."""
    # Missing topics are left to other checks.
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
