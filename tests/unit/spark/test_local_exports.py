"""Rows on the disk of a stopped worker become Parquet, without brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from riverrun import LONG, STRING, Consumed, Materialized, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import ConfigError, InvalidStateStoreError, StateInUseError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.records import RawRecord, TopicPartition
from riverrun.runtime.layout import TaskSpec, plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.spark import store_files
from riverrun.spark.store_files import check_sums, export_local_rows
from riverrun.spark.store_rows import batches_of
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.testing.driver import MemoryTopics, MockClock


def application(**options: Any) -> Application:
    builder = StreamsBuilder()
    words = builder.stream("words", Consumed(STRING, STRING))
    words.group_by_key().count(Materialized(STRING, LONG, name="counts", **options))
    return Application(AppConfig("words", "none:none"), "v1", builder.build(), Kafka({}), Path())


def stopped(app: Application, directory: Path) -> Path:
    """Let a worker count two words, one in each of two partitions, and stop; return its state directory."""
    for task_id, inputs in plan_layout(app.topology, app.id, {"words": 2}).tasks.items():
        topics, state = MemoryTopics({}), RocksDbBackend(directory / app.id / str(task_id))
        (sub,) = app.topology.sub_topologies()
        task = Task(TaskSpec(task_id, sub, app.id, inputs), Ports(topics, state, MockClock()))
        task.start({})
        key = b"word-%d" % task_id.partition
        records = [RawRecord(key, b"x", 1_000 * n, n) for n in range(2 + task_id.partition)]
        task.add_records(TopicPartition("words", task_id.partition), records)
        task.process_all()
        task.post_commit({tp: len(topics.logs[tp.topic]) for tp in task.prepare_commit().changelogs})
        task.close()
        state.close()
    return directory


ROWS = [("word-0", 2, 0), ("word-1", 3, 1)]


def rows_in(path: Path) -> list[tuple[Any, ...]]:
    found = parquet.read_table(path).select(["key", "value", "partition"]).to_pylist()
    return [tuple(row.values()) for row in found]


@pytest.mark.parametrize("logging", [True, False])
def test_a_stopped_workers_rows_are_exported(tmp_path: Path, logging: bool) -> None:
    app = application(logging=logging)
    directory = stopped(app, tmp_path / "state")
    done = export_local_rows(app, "counts", tmp_path / "counts.parquet", directory)
    assert (done.rows, done.partitions) == (2, (0, 1))
    assert rows_in(tmp_path / "counts.parquet") == ROWS
    apart = export_local_rows(app, "counts", tmp_path / "apart", directory, raw=True)
    assert [path.name for path in apart.files] == ["partition-00000.parquet", "partition-00001.parquet"]
    assert rows_in(apart.files[1]) == [(b"word-1", (3).to_bytes(8, "big"), 1)]


def test_state_in_use_and_other_directories_are_refused(tmp_path: Path) -> None:
    app, target = application(), tmp_path / "counts.parquet"
    directory = stopped(app, tmp_path / "state")
    with pytest.raises(InvalidStateStoreError, match="has no state of store counts of words-v1"):
        export_local_rows(app, "counts", target, tmp_path)
    with pytest.raises(InvalidStateStoreError, match="no store count"):
        export_local_rows(app, "count", target, directory)
    with pytest.raises(InvalidStateStoreError, match="in memory only"):
        export_local_rows(application(persistent=False), "counts", target, directory)
    running = RocksDbBackend(directory / app.id / "0_1")
    with pytest.raises(StateInUseError, match="in use by another process"):
        export_local_rows(app, "counts", target, directory)
    running.close()
    assert not target.exists()
    export_local_rows(app, "counts", target, directory)
    with pytest.raises(ConfigError, match="already exists"):
        export_local_rows(app, "counts", target, directory)


@pytest.mark.parametrize("name", ["counts", "counts.parquet"])
def test_of_two_exports_to_one_place_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app, target = application(), tmp_path / "out" / name
    slow, fast = stopped(app, tmp_path / "slow"), stopped(app, tmp_path / "fast")

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.undo()
        yield from batches_of(*arguments)
        export_local_rows(app, "counts", target, fast)

    monkeypatch.setattr(store_files, "batches_of", meanwhile)
    with pytest.raises(ConfigError, match="already exists"):
        export_local_rows(app, "counts", target, slow)
    files = sorted(target.glob("*.parquet")) if target.is_dir() else [target]
    check_sums(target, files)
    assert [row for path in files for row in rows_in(path)] == ROWS
    assert not [*tmp_path.rglob("*.part")]


def test_what_an_export_that_died_has_left_is_removed(tmp_path: Path) -> None:
    app, directory = application(), stopped(application(), tmp_path / "state")
    left, others = f"counts.{'0a' * 16}.part", [f"counts.at-noon.{'0a' * 16}.part", "counts.download.part"]
    for name in (left, *others):
        (tmp_path / name).write_bytes(b"PAR1")
    export_local_rows(app, "counts", tmp_path / "counts.parquet", directory)
    assert sorted(path.name for path in tmp_path.glob("*.part")) == others
