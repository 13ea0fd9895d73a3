"""Records which serdes have written the stores and repartition topics of an application, and compares today's serdes at start.

A value stays in the form in which it was written until its key is updated, perhaps for years. So each topic has the
descriptions of all serdes that may have written its rows, in the control topic `riverrun-state`. Every machine sees that topic
before it has any state. Local state and snapshots hold only rows of changelogs, so they need no separate record. The id of
the topic is part of the record: a topic that was deleted and created again has no old rows.

Kafka takes no settings of topics that it does not know, and 4 KiB of metadata with an offset: neither has room for this.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import UnreadableError, Word, foreign_decoder
from riverrun.errors import USER_ERRORS, RegistryError, StateSchemaError, as_exception
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.serde_changes import compare, described, name_of
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, TopicPartition, counted, shortened
from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.runtime.packs import opened, writer_of
from riverrun.serde.api import comparing
from riverrun.serde.internal import decode_list
from riverrun.state.api import StoreKind
from riverrun.state.stores.buffer import BufferedChange
from riverrun.state.stores.join_window import JOIN_SUFFIX
from riverrun.state.stores.session_merging import SUFFIX
from riverrun.state.stores.window import WINDOW_SUFFIX
from riverrun.state.values import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.serde_changes import Comparison, Description
    from riverrun.kafka.admin import Admin
    from riverrun.records import RawRecord
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)

STATE_TOPIC = "riverrun-state"
"""The control topic with a record of each changelog and repartition topic, by the topic's name."""
_MOST_READ = 10_000
"""The newest offsets of a partition whose rows are read where descriptions do not decide."""
_MOST_KEPT = 50
"""Descriptions of a topic's serdes that are kept: those that were added last."""
_SUFFIXES: Mapping[StoreKind, int] = {
    StoreKind.WINDOW: WINDOW_SUFFIX.size,
    StoreKind.TIMESTAMPED_WINDOW: WINDOW_SUFFIX.size,
    StoreKind.JOIN_WINDOW: JOIN_SUFFIX.size,
    StoreKind.SESSION: SUFFIX.size,
}
"""Bytes behind the user's key in the keys of a changelog."""


class _Pair(msgspec.Struct):
    key: dict[str, Any]
    value: dict[str, Any]


class _Record(msgspec.Struct):
    """The record of one topic, with the serdes that may have written its rows, the latest one last."""

    topic_id: Word
    serdes: list[_Pair]


_decode = foreign_decoder(_Record)


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """A topic with rows that only this application writes and reads; `kind` is None for a repartition topic."""

    topic: str
    owner: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    kind: StoreKind | None

    @property
    def serdes(self) -> _Pair:
        return _Pair(described(self.key_serde), described(self.value_serde))

    def parts(self, record: RawRecord) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield the bytes of key and value that the serdes have written, of each row in a record."""
        key, value = record.key, record.value
        if self.kind is None:
            is_pack = writer_of(record.headers) is not None
            rows = [(each[0], each[1]) for each in opened(value, record.offset)] if is_pack else [(key, value)]
            yield from ((k, v) for k, v in rows if v is not None)
        elif value is not None:
            suffix = _SUFFIXES.get(self.kind, 0)
            own = key[:-suffix] if suffix and key is not None else key
            yield from ((own, each) for each in self._values(value))

    def _values(self, value: bytes) -> list[bytes]:
        if self.kind is StoreKind.LIST_VALUE:
            return decode_list(value)
        if self.kind is StoreKind.BUFFER:
            change = BufferedChange.decode(value)
            return [each for each in (change.prior, change.old, change.new) if each is not None]
        return [value]


def written_topics(topology: Topology, application_id: str) -> list[WrittenTopic]:
    """Return the changelogs and repartition topics of an application, with the serdes that read them."""
    found = [
        WrittenTopic(
            changelog_name(application_id, store.name),
            f"Store {store.name}",
            store.key_serde,
            store.value_serde,
            store.kind,
        )
        for store in topology.stores.values()
        if store.logging
    ]
    sources = [source for sub in topology.sub_topologies() for source in sub.sources]
    return found + [
        WrittenTopic(
            internal_name(application_id, topic),
            f"Repartition topic {topic}",
            source.key_serde,
            source.value_serde,
            None,
        )
        for source in sources
        for topic in source.topics
        if topic in topology.repartition_topics
    ]


@dataclass(frozen=True, slots=True)
class _Sample:
    """The rows that were read: whether the topic has no others, and a key whose row cannot be read, with the reason."""

    rows: int
    is_whole: bool
    unreadable: tuple[str, str] | None = None


class StateSchemas:
    """The recorded serdes of the topics of one application, whose patterns are resolved."""

    def __init__(self, connected: ConnectedApplication) -> None:
        self._topics = {each.topic: each for each in written_topics(connected.topology, connected.id)}
        self._connected = connected
        self._admin = connected.admin
        self._control = ControlTopic(connected.admin, STATE_TOPIC)

    def check(self) -> None:
        """Compare today's serdes with those that have written the rows, and record them. The topics exist."""
        needed = self._connected.layout.internal_topics
        partitions = {each.name: each.partitions for each in needed if each.name in self._topics}
        if not partitions:
            return
        noted, ids = self._noted(), self._admin.topic_ids(partitions)
        changed: dict[str, bytes | None] = {}
        for topic, count in partitions.items():
            known = noted.get(topic)
            earlier = known.serdes if known is not None and known.topic_id == ids.get(topic) else []
            now = self._topics[topic].serdes
            if earlier == [now] or topic not in ids:
                continue
            kept = self._compared(self._topics[topic], count, earlier) if earlier else []
            later = [*(each for each in kept if each != now), now]
            if later != earlier:
                changed[topic] = msgspec.json.encode(_Record(ids[topic], later[-_MOST_KEPT:]))
        # Once all topics are compared: a start that is refused records nothing.
        if changed:
            self._control.put(changed)

    def accept(self, owner: str) -> list[str]:
        """Take today's serdes of a store or repartition topic as those of all of its rows. Returns the forms that end."""
        wanted = {changelog_name(self._connected.id, owner), internal_name(self._connected.id, owner)}
        found = next((each for name, each in self._topics.items() if name in wanted), None)
        if found is None:
            names = ", ".join(sorted(each.owner.rpartition(" ")[2] for each in self._topics.values()))
            message = f"{self._connected.id} has no store {owner} with a changelog"
            raise StateSchemaError(message, hint=f"It has: {names or 'none'}.")
        topic_id = self._admin.topic_ids([found.topic]).get(found.topic)
        if topic_id is None:
            message = f"{found.owner} of {self._connected.id} has no rows yet: topic {found.topic} does not exist"
            raise StateSchemaError(message, hint="Start the application: there is nothing to accept.")
        known, now = self._noted().get(found.topic), found.serdes
        self._control.put({found.topic: msgspec.json.encode(_Record(topic_id, [now]))})
        earlier = [] if known is None or known.topic_id != topic_id else known.serdes
        return [_shown(each) for each in earlier if each != now]

    def known(self) -> dict[str, list[str]]:
        """Return the forms that rows may have, by store and repartition topic; the latest one is last."""
        noted, ids = self._noted(), self._admin.topic_ids(self._topics)
        return {
            each.owner: [_shown(pair) for pair in noted[topic].serdes]
            for topic, each in self._topics.items()
            if topic in noted and noted[topic].topic_id == ids.get(topic)
        }

    def _noted(self) -> dict[str, _Record]:
        found = {}
        for topic, value in self._control.read().items():
            if topic in self._topics:
                try:
                    found[topic] = _decode(value)
                except UnreadableError as error:
                    log.warning("ignored record %s of topic %s: %s", shortened(topic), STATE_TOPIC, error)
        return found

    def _compared(self, found: WrittenTopic, partitions: int, earlier: list[_Pair]) -> list[_Pair]:
        """Compare a topic's serdes with all that have written to it. Returns those whose rows may still be there."""
        sides = (("key", found.key_serde), ("value", found.value_serde))
        results = [
            (side, getattr(pair, side), compare(getattr(pair, side), serde, is_key=side == "key"))
            for pair in earlier
            for side, serde in sides
        ]
        refused = [each for each in results if each[2].reasons]
        if not refused and all(result.is_sure for _, _, result in results):
            # The last two results are of key and value in the latest form.
            _warn_of_lost(found, results[-2:])
            return earlier
        sample = self._sample(found, partitions)
        if not sample.rows and sample.is_whole:
            return []
        if sample.unreadable is not None or (refused and not _is_proved(sample, refused)):
            raise self._refusal(found, refused, sample)
        how = "all" if sample.is_whole else "the newest"
        log.info("%s: its serdes have changed; %s %s can be read", found.owner, how, counted(sample.rows, "row"))
        _warn_of_lost(found, results[-2:])
        return earlier

    def _sample(self, found: WrittenTopic, partitions: int) -> _Sample:
        """Read the newest rows of a topic, up to the first one that cannot be read."""
        tps = [TopicPartition(found.topic, number) for number in range(partitions)]
        first, end = self._admin.beginning_offsets(tps), self._admin.end_offsets(tps)
        # Of a repartition topic, only records that are still to be processed matter.
        read_on = self._connected.noted(tps) if found.kind is None else {}
        first |= {tp: min(end[tp], max(first[tp], noted.offset)) for tp, noted in read_on.items()}
        ranges = {tp: OffsetRange(max(first[tp], end[tp] - _MOST_READ), end[tp]) for tp in tps}
        is_whole = all(ranges[tp].start == first[tp] for tp in tps)
        rows, keys = 0, comparing(found.key_serde)
        for _, records in read_range(self._admin, ranges):
            for record in records:
                for key, value in found.parts(record):
                    rows += 1
                    why = _why_unreadable(keys, found.value_serde, key, value)
                    if why is not None:
                        return _Sample(rows, is_whole, (_key_text(found, key), why))
        return _Sample(rows, is_whole)

    def _refusal(
        self, found: WrittenTopic, refused: list[tuple[str, Description, Comparison]], sample: _Sample
    ) -> StateSchemaError:
        said = [f"{side}s written as {name_of(old)}: {'; '.join(r.reasons)}" for side, old, r in refused]
        if sample.unreadable is not None:
            key, why = sample.unreadable
            said.append(f"key {key}: {why}")
        else:
            said.append(f"none of the newest {counted(sample.rows, 'row')} fails to be read, but others may")
        app, version = self._connected.application.config.name, self._connected.version
        name = found.owner.rpartition(" ")[2]
        return StateSchemaError(
            f"{found.owner} of {self._connected.id} has rows that this code cannot read. {'. '.join(dict.fromkeys(said))}",
            hint=(
                "Release a new version, which computes its state again. Or give a new field a default, and leave the types of"
                f" others as wide as they were. If the rows are as this code expects: riverrun state accept {app} {name}"
                f" --version {version}"
            ),
        )


def copy_records(admin: Admin, topics: Mapping[str, str]) -> None:
    """Note that topics (by the topic that each was copied from) have rows of the same forms; missing ones are left out."""
    control, ids = ControlTopic(admin, STATE_TOPIC), admin.topic_ids(topics.values())
    noted, copied = control.read(), dict[str, bytes | None]()
    for source, copy in topics.items():
        if source in noted and copy in ids:
            # A start warns of an unreadable record.
            with suppress(UnreadableError):
                copied[copy] = msgspec.json.encode(_Record(ids[copy], _decode(noted[source]).serdes))
    if copied:
        control.put(copied)


def forget(admin: Admin, topics: Collection[str]) -> None:
    """Delete the records of topics that have been deleted."""
    control = ControlTopic(admin, STATE_TOPIC)
    noted = dict.fromkeys(control.read().keys() & set(topics))
    if noted:
        control.put(noted)


def _is_proved(sample: _Sample, refused: list[tuple[str, Description, Comparison]]) -> bool:
    """Return whether rows themselves show that they can be read, although values of their form need not be."""
    return sample.is_whole and not any(result.is_misread for _, _, result in refused)


def _why_unreadable(keys: Serde[Any], values: Serde[Any], key: bytes | None, value: bytes) -> str | None:
    try:
        # A row whose key is written otherwise is no longer found under its key.
        if key is not None and keys.serialize(keys.deserialize(key)) != key:
            return f"serde {keys.name} would write the key otherwise"
        values.deserialize(value)
    # An error of a schema registry says nothing about the row.
    except RegistryError:
        raise
    except USER_ERRORS as error:  # a serde may raise anything
        return f"{type(error).__name__}: {as_exception(error)}"
    return None


def _key_text(found: WrittenTopic, key: bytes | None) -> str:
    """Return a key for a message: as its serde reads it, or else its bytes."""
    try:
        return shown(None if key is None else found.key_serde.deserialize(key))
    except USER_ERRORS as error:  # the key itself may be the problem
        as_exception(error)
        return shown(key)


def _warn_of_lost(found: WrittenTopic, latest: list[tuple[str, Description, Comparison]]) -> None:
    """Warn of fields that the latest rows have, and that no later row will."""
    lost = sorted({field for _, _, result in latest for field in result.lost})
    if lost:
        log.warning(
            "%s: %s of earlier rows %s no longer read, and each row loses it when it is updated next. A renamed field keeps its"
            ' values with msgspec.field(name="...")',
            found.owner,
            ", ".join(lost),
            "is" if len(lost) == 1 else "are",
        )


def _shown(pair: _Pair) -> str:
    return f"{name_of(pair.key)} to {name_of(pair.value)}"
