"""Takes a version back to an earlier point: its committed offsets, and the state that its changelogs hold.

Each task goes back in one transaction under its lock. For every key that changed since, its changelog gets the row that it had
at the point, or a tombstone. Local state and snapshots of later times stay valid, as they restore these records like any
others. So nothing that the changelogs held at the point may be deleted before: brokers must not compact what came since
(`keep_whole`), and no purge may run.

Changelogs of windows and versions are created again instead, with what they held at the point.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.hosting.inputs import reset_offsets
from riverrun.hosting.kept_offsets import commit_and_keep
from riverrun.hosting.ownership import owning
from riverrun.hosting.process import SystemClock
from riverrun.hosting.progress import report_progress
from riverrun.hosting.release import staging_name
from riverrun.hosting.topic_ids import found_ids, ids_to_commit
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.ranges import read_fields
from riverrun.records import Headers, OffsetRange, TopicPartition
from riverrun.releases.corrections import copy_partitions
from riverrun.runtime.layout import changelog_name
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.api import WINDOWED, StoreKind
from riverrun.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.producer import TransactionalProducer
    from riverrun.records import TaskId
    from riverrun.runtime.layout import TopicRequirement

_LAG = "min.compaction.lag.ms"
_FOREVER = str(2**63 - 1)
# The brokers' default, which is restored by removing the topic's own setting.
_NO_LAG = "0"
_DIRECTORY = "rewinding"
_CHANGED, _BEFORE = "changed", "before"
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}
_Row = tuple[bytes, int, Headers]
_row = msgpack_decoder(_Row)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that a version can be taken back to, noted while no host processed.

    Args:
        committed: Offset and metadata of each input; the start, with empty metadata, of inputs that were never committed.
        ends: End offset (exclusive) of each partition of the internal topics that existed.
    """

    committed: Mapping[TopicPartition, tuple[int, str]]
    ends: Mapping[TopicPartition, int]
    ids: Mapping[str, str]


def mark_of(connected: ConnectedApplication, starts: Mapping[TopicPartition, int]) -> Mark:
    """Note the position of a resolved version that no host processes; `starts` are those of inputs without commits."""
    admin = connected.admin
    committed = {tp: (found.offset, found.metadata) for tp, found in connected.committed().items()}
    internal = [topic.name for topic in connected.layout.internal_topics]
    topics = admin.topics(internal)
    tps = [TopicPartition(name, n) for name, topic in topics.items() for n in range(topic.partitions)]
    external = [tp for tp in connected.inputs - committed.keys() if tp.topic not in internal]
    chosen = {tp: starts[tp] for tp in external if tp in starts}
    rest = reset_offsets(connected, [tp for tp in external if tp not in starts], SystemClock().now_ms())
    begun = {tp: (offset, "") for tp, offset in {**rest, **chosen}.items()}
    ids = {name: topic.id for name, topic in topics.items()}
    return Mark({**begun, **committed}, admin.stable_end_offsets(tps), ids)


def keep_whole(
    admin: Admin, changelogs: Iterable[TopicRequirement], check: Callable[[], object] = lambda: None
) -> dict[str, str]:
    """Let brokers keep all records of changelogs from now on, and return the settings to restore (`compact_again`).

    `check` raises if another process has restored them by now.
    """
    # A call whose result was lost can be repeated: of topics that it has changed, the layout knows the settings.
    own = {topic.name: topic.config.get(_LAG, _NO_LAG) for topic in changelogs}
    found = {topic: config[_LAG] for topic, config in admin.topic_configs(own).items()}
    check()
    admin.alter_topic_configs({topic: {_LAG: _FOREVER} for topic, lag in found.items() if lag != _FOREVER})
    return {topic: own[topic] if lag == _FOREVER else lag for topic, lag in found.items()}


def compact_again(admin: Admin, settings: Mapping[str, str], check: Callable[[], object] = lambda: None) -> None:
    """Restore the settings of changelogs that `keep_whole` has changed; skip topics that are gone.

    `check` raises if the settings are of another process by now.
    """
    present = admin.partitions(settings)
    check()
    admin.alter_topic_configs(
        {topic: {_LAG: None if lag == _NO_LAG else lag} for topic, lag in settings.items() if topic in present}
    )


def lost_settings(admin: Admin, changelogs: Iterable[TopicRequirement]) -> dict[str, str]:
    """Return the settings to restore of changelogs that a call of `keep_whole` has changed, and that nobody has noted."""
    own = {topic.name: topic.config.get(_LAG, _NO_LAG) for topic in changelogs}
    found = admin.topic_configs(own)
    return {topic: own[topic] for topic, config in found.items() if config[_LAG] == _FOREVER}


def rewind(connected: ConnectedApplication, mark: Mark, name: str, check: Callable[[], object]) -> None:
    """Take all tasks of a resolved version back to a point. If interrupted, another call with the same `name` completes it.

    `check` raises if this process may no longer do so; it is called before each topic, and once others are fenced from a task.
    """
    # `delete_copies` knows the copies by the form of the name: 8 hex digits.
    tasks, doing = sorted(connected.layout.tasks), f"take {connected.id} back"
    timed = _timed(connected)
    for topic in timed.values():
        check()
        _create_again(connected, topic, mark, _copy_of(connected, topic.name, name), check)
    for done, task_id in enumerate(tasks):
        report_progress(doing, done, len(tasks))
        _rewind_task(connected, task_id, mark, timed, check)
    report_progress(doing, len(tasks), len(tasks))


def delete_copies(
    connected: ConnectedApplication, name: str = "[0-9a-f]{8}", check: Callable[[], object] = lambda: None
) -> None:
    """Delete the copies of changelogs that `rewind` has made by this name, or by any.

    Call it once a record says that the rewind is complete. `check` raises if others may rewind by now.
    """
    admin = connected.admin
    named = re.compile(re.escape(staging_name(connected.id, "")) + rf"{name}-.+-changelog")
    copies = [topic for topic in admin.list_topics(staging_name(connected.id, "")) if named.fullmatch(topic)]
    admin.delete_topics(copies, check)


def _timed(connected: ConnectedApplication) -> dict[str, TopicRequirement]:
    """Return the changelogs of stores that expire by event time, by name."""
    # They expire by the highest time that a store has seen. Later local state has dropped some rows already, and whatever
    # reads such a changelog sees the later time. So writing the earlier rows again would not bring the point back.
    stores = {store.name: store.kind for sub in connected.topology.sub_topologies() for store in sub.stores}
    kinds = {changelog_name(connected.id, name): kind for name, kind in stores.items()}
    return {
        topic.name: topic
        for topic in connected.layout.changelog_topics
        if kinds[topic.name] in WINDOWED or kinds[topic.name] is StoreKind.VERSIONED
    }


def _copy_of(connected: ConnectedApplication, topic: str, name: str) -> str:
    return staging_name(connected.id, f"{name}-{topic.removeprefix(connected.id)[1:]}")


def _create_again(
    connected: ConnectedApplication, topic: TopicRequirement, mark: Mark, copy: str, check: Callable[[], object]
) -> None:
    """Create a changelog again, through a copy, with the records that it held at a point."""
    # Its new id makes local state and snapshots useless (`hosting.restoring`).
    admin, streams = connected.admin, connected.application.config.streams
    present, noted = admin.topics([topic.name]).get(topic.name), mark.ids.get(topic.name)
    # If the id is not the noted one, an earlier call has made the copy, and deleted the topic.
    is_known = present is not None and present.id == noted
    if is_known:
        kept = {**streams.topic, **_KEPT}
        admin.create_topics([TopicSpec(copy, topic.partitions, kept, streams.replication_factor)])
        ends = {tp: end for tp, end in mark.ends.items() if tp.topic == topic.name}
        copy_partitions(admin, connected.id, copy, ends, copy)
    if is_known or noted is None:
        # By now, another process may have restored the topic, under its name.
        admin.delete_topics([topic.name], check)
    config = {**streams.topic, **topic.config}
    admin.create_topics([TopicSpec(topic.name, topic.partitions, config, streams.replication_factor)])
    if noted is not None:
        tps = [TopicPartition(copy, n) for n in range(topic.partitions)]
        copy_partitions(admin, connected.id, f"{copy}-back", admin.settled_end_offsets(tps), topic.name)


def _rewind_task(
    connected: ConnectedApplication, task_id: TaskId, mark: Mark, timed: Container[str], check: Callable[[], object]
) -> None:
    application, admin, inputs = connected.application, connected.admin, connected.layout.tasks[task_id]
    spec = application.task_spec(task_id, inputs)
    ids, repartitions = found_ids(admin, spec.topics), {topic.name for topic in connected.layout.repartition_topics}
    with owning(connected, task_id) as producer:
        check()
        for tp in spec.own_changelogs.values():
            if tp.topic in timed:
                continue
            with _index(application.directory / _DIRECTORY) as index:
                for key, value, timestamp, headers in _rows_before(admin, tp, mark.ends.get(tp, 0), index):
                    producer.send(tp.topic, key, value, timestamp, headers, tp.partition)
        offsets = {}
        for tp in inputs:
            offset, metadata = mark.committed.get(tp, (0, ""))
            if tp.topic in repartitions:
                offset = _put_back(admin, tp, mark, producer)
            if metadata:
                # Without an owner, the next one does not look for a producer to fence.
                known = replace(OffsetMetadata.decode(metadata), owner="")
                metadata = replace(known, topics=ids_to_commit(tp, ids, connected.id)).encode()
            offsets[tp] = offset, metadata
        commit_and_keep(producer, application.id, offsets, offsets)


def _put_back(admin: Admin, tp: TopicPartition, mark: Mark, producer: TransactionalProducer) -> int:
    """Write records that were still to be processed at a point once more, at the end of their repartition topic.

    Return the offset of the first of them: all that came since the point lies before it, and is not read again.
    """
    end = admin.stable_end_offsets([tp])[tp]
    offset, _ = mark.committed.get(tp, (0, ""))
    first, until = admin.beginning_offsets([tp])[tp], mark.ends.get(tp, 0)
    left = OffsetRange(max(offset, first), max(offset, first, until))
    for _, batch in read_fields(admin, {tp: left} if left.size else {}):
        for key, value, timestamp, _, headers in batch:
            producer.send(tp.topic, key, value, timestamp, headers, tp.partition)
    return end


def _rows_before(
    admin: Admin, tp: TopicPartition, until: int, index: RocksDbBackend
) -> Iterator[tuple[bytes, bytes | None, int, Headers]]:
    """Yield, for each key of a changelog written since an offset, its last record before that; else a tombstone."""
    # The changed keys may be too many for memory, so they are kept in an index on disk.
    first, end = admin.beginning_offsets([tp])[tp], admin.stable_end_offsets([tp])[tp]
    since = OffsetRange(max(first, until), max(first, until, end))
    if not since.size:
        return
    for _, batch in read_fields(admin, {tp: since}):
        times: dict[bytes, bytes | None] = {}
        times |= {key: msgspec.msgpack.encode(timestamp) for key, _, timestamp, _, _ in batch if key is not None}
        index.write({_CHANGED: times}, {})
    is_changed = index.table(_CHANGED).get
    for _, batch in read_fields(admin, {tp: OffsetRange(first, until)} if first < until else {}):
        rows: dict[bytes, bytes | None] = {}
        for key, value, timestamp, _, headers in batch:
            if key is not None and is_changed(key) is not None:
                rows[key] = None if value is None else msgspec.msgpack.encode((value, timestamp, headers))
        index.write({_BEFORE: rows}, {})
    before = index.table(_BEFORE).get
    for key, written in index.table(_CHANGED).scan(None, None):
        row = before(key)
        if row is None:
            yield key, None, int(msgspec.msgpack.decode(written)), ()
        else:
            value, timestamp, headers = _row.decode(row)
            yield key, value, timestamp, headers


@contextmanager
def _index(directory: Path) -> Iterator[RocksDbBackend]:
    shutil.rmtree(directory, ignore_errors=True)
    index = RocksDbBackend(directory)
    try:
        yield index
    finally:
        index.close()
        shutil.rmtree(directory, ignore_errors=True)
