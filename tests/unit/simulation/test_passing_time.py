"""Time passes for brokers in memory: retention, cleaning, and forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.kafka.admin import Admin
from tests.clusters import Member, memory_cluster, new_partition, owner, send

if TYPE_CHECKING:
    from tests.clusters import MemoryCluster, Partition

MINUTE_MS, DAY_MS = 60_000, 86_400_000


@pytest.fixture
def cluster() -> MemoryCluster:
    return memory_cluster()


def write(log: Partition, *keys: str) -> None:
    """Write each key's upper case; a key with a minus is deleted."""
    # Not with Riverrun's producer, which compares times with this machine's clock.
    producer = log.cluster.raw_producer()
    for key in keys:
        name = key.strip("-").encode()
        producer.produce(log.tp.topic, None if key.endswith("-") else name.upper(), name, 0)
    producer.flush()


def rows(log: Partition) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.read(log.start())]


def test_old_records_are_deleted_by_segments(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, retention_ms=f"{DAY_MS}", segment_ms=f"{DAY_MS // 2}")
    write(log, "a", "b")
    cluster.pass_time(DAY_MS // 2 + 1)
    write(log, "c")
    assert log.start() == 0
    cluster.pass_time(DAY_MS // 2 + 1)
    assert (log.start(), rows(log)) == (2, [(2, b"C")])
    cluster.pass_time(DAY_MS)
    assert (log.start(), log.end()) == (3, 3)
    write(log, "d")
    assert rows(log) == [(3, b"D")]


def test_records_without_limits_are_kept(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    write(log, "a")
    cluster.pass_time(4000 * DAY_MS)
    assert rows(log) == [(0, b"A")]


def test_the_oldest_records_are_deleted_beyond_a_size(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, retention_bytes="1500000", segment_bytes="1048576")
    for number in range(5):
        log.write((b"%d" % number, b"v" * 600_000, cluster.now_ms()))
    cluster.pass_time(5 * MINUTE_MS)
    assert [record.offset for record in log.read(log.start())] == [2, 3, 4]


COMPACTED = {"cleanup_policy": "compact", "segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01"}


def close_segment(log: Partition, key: str = "last") -> None:
    """Write another record, so that those before it can be cleaned, and let the cleaner run."""
    log.cluster.pass_time(2000)
    write(log, key)
    log.cluster.pass_time(15_000)


def test_the_latest_record_of_each_key_is_kept(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, **COMPACTED)
    write(log, "a", "b", "a", "c", "b")
    cluster.pass_time(15_000)
    assert len(rows(log)) == 5
    close_segment(log)
    assert rows(log) == [(2, b"A"), (3, b"C"), (4, b"B"), (5, b"LAST")]
    assert (log.start(), log.end()) == (0, 6)
    assert log.values(1) == [b"A", b"C", b"B", b"LAST"]


def test_tombstones_go_only_after_their_time(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, **COMPACTED, delete_retention_ms=f"{DAY_MS}")
    write(log, "a", "b", "a-")
    close_segment(log)
    assert rows(log) == [(1, b"B"), (2, None), (3, b"LAST")]
    cluster.pass_time(DAY_MS // 2)
    close_segment(log)
    assert (2, None) in rows(log)
    cluster.pass_time(DAY_MS)
    close_segment(log)
    assert rows(log)[0] == (1, b"B")
    assert (2, None) not in rows(log)


def test_young_records_are_not_cleaned(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, **COMPACTED, min_compaction_lag_ms=f"{DAY_MS}")
    write(log, "a", "a")
    close_segment(log)
    assert len(rows(log)) == 3
    cluster.pass_time(DAY_MS)
    assert rows(log) == [(1, b"A"), (2, b"LAST")]


def test_a_log_that_is_not_dirty_enough_is_left_alone(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, cleanup_policy="compact", segment_ms="1000")
    write(log, "a", *map(str, range(100)))
    close_segment(log)
    write(log, "a")
    close_segment(log)
    assert (0, b"A") in rows(log)


def test_open_transactions_are_not_cleaned_and_aborted_records_go(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique, **COMPACTED, delete_retention_ms="0")
    write(log, "k")
    producer = owner(cluster, unique, 900_000)
    send(producer, log, b"aborted")
    close_segment(log)
    assert log.end() == 3
    producer.abort()
    close_segment(log)
    assert rows(log) == [(0, b"K"), (2, b"LAST"), (4, b"LAST")]
    raw = cluster.brokers.topics.log(unique, 0)
    assert [entry.offset for entry in raw.entries if entry.key == b"k"] == [0]


def test_offsets_of_groups_without_members_are_forgotten(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.alter_offsets(f"{unique}.alone", {log.tp: 1})
    cluster.pass_time(6 * DAY_MS)
    assert log.admin.committed(f"{unique}.alone", [log.tp])[log.tp].offset == 1
    cluster.pass_time(2 * DAY_MS)
    assert log.admin.committed(f"{unique}.alone", [log.tp]) == {}
    assert Admin(cluster.kafka).group(f"{unique}.alone").state == "dead"


def test_offsets_age_only_once_the_last_member_has_left(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.alter_offsets(unique, {log.tp: 2})
    member = Member(cluster, unique, b"one", session_ms=1_800_000, topics=[unique])
    member.until_knows(b"one")
    for _ in range(8):
        # Its heartbeats are sent by the real clock, and sessions end by the brokers'.
        cluster.brokers.groups[unique].members[member.place._member_id].deadline_ms += 2 * DAY_MS
        cluster.pass_time(DAY_MS)
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 2
    member.place.close()
    cluster.pass_time(6 * DAY_MS)
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 2
    cluster.pass_time(2 * DAY_MS)
    assert log.admin.committed(unique, [log.tp]) == {}


def test_one_seed_makes_one_history(unique: str) -> None:
    def history() -> tuple[object, ...]:
        cluster = memory_cluster()
        log = new_partition(cluster, unique)
        producer = cluster.raw_producer()
        for number in range(10):
            producer.produce(unique, b"%d" % number)
        producer.flush()
        return (log.admin.topic_ids([unique]), log.values())

    assert history() == history()
