"""A large commit is written in parts, between which questions are answered, where the changelog can make it whole again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, Materialized, StreamsBuilder
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from pathlib import Path

INPUT = TopicPartition("in", 0)
KEYS = 2_000


@pytest.mark.parametrize(
    ("materialized", "is_in_parts"),
    [
        (Materialized(name="store"), True),
        (Materialized(name="store", logging=False), False),
        (Materialized(name="store", history_retention=timedelta(days=1)), False),
    ],
    ids=["logged", "not logged", "versioned"],
)
def test_a_commit_is_written_in_parts_only_if_it_may_be_torn(
    tmp_path: Path, materialized: Materialized[str, str], is_in_parts: bool
) -> None:
    builder = StreamsBuilder()
    builder.table("in", Consumed(STRING, STRING), materialized)
    (sub,) = builder.build().sub_topologies()
    backend = RocksDbBackend(tmp_path / "0_0")
    seen: list[int] = []

    def rows() -> int:
        return sum(1 for name in backend.tables() for _ in backend.table(name).scan(None, None))

    spec = TaskSpec(TaskId(0, 0), sub, "app", (INPUT,))
    task = Task(spec, Ports(MemoryTopics(), backend, MockClock(), {}, lambda: seen.append(rows())))
    task.start({})
    task.add_records(INPUT, [RawRecord(b"%04d" % n, b"v", n, n) for n in range(KEYS)])
    task.process_all()
    commit = task.prepare_commit()
    task.post_commit(dict.fromkeys(commit.changelogs, KEYS))
    assert (max(seen) > 0) is is_in_parts
    assert rows() >= KEYS
    task.close()
    backend.close()
