"""Local state of tasks that have moved away is deleted after a while, unless somebody has it open."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

import pytest

from riverrun.hosting.local_state import ObsoleteState
from riverrun.hosting.process import SystemClock
from riverrun.records import TaskId
from riverrun.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

HOUR_MS = 3_600_000
ONE, OTHER = TaskId(0, 1), TaskId(0, 2)


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The directory of an application with the state of two tasks, of two hours ago."""
    for task in (ONE, OTHER):
        RocksDbBackend(tmp_path / str(task)).close()
        age(tmp_path / str(task))
    return tmp_path


def age(path: Path) -> None:
    then_ns = (SystemClock().now_ms() - 2 * HOUR_MS) * 1_000_000
    os.utime(path, ns=(then_ns, then_ns))


def due(directory: Path) -> ObsoleteState:
    obsolete = ObsoleteState(directory, HOUR_MS, SystemClock())
    obsolete._looked_at -= HOUR_MS / 1000
    return obsolete


def test_unused_state_is_deleted_after_the_delay_unless_its_task_is_here(left: Path) -> None:
    (left / "process-id").write_text("me")
    assert due(left).delete_if_due({OTHER}) == (ONE,)
    assert sorted(path.name for path in left.iterdir()) == ["0_2", "process-id"]


def test_nothing_is_looked_for_before_the_delay_has_passed_once(left: Path) -> None:
    assert ObsoleteState(left, HOUR_MS, SystemClock()).delete_if_due(set()) == ()


def test_state_that_was_let_go_of_only_now_is_kept(left: Path) -> None:
    RocksDbBackend(left / str(ONE)).close()
    assert due(left).delete_if_due(set()) == (OTHER,)


def test_what_an_interrupted_deletion_has_left_is_deleted_by_the_next(left: Path) -> None:
    (left / "0_1").rename(left / ".deleted-0_1")
    assert due(left).delete_if_due({OTHER}) == ()
    assert [path.name for path in left.iterdir()] == ["0_2"]


def test_state_that_another_process_has_open_is_kept_until_it_lets_go(left: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(left / str(ONE), theirs))
    process.start()
    try:
        assert ours.poll(60)
        age(left / str(ONE))
        assert due(left).delete_if_due({OTHER}) == ()
        assert (left / str(ONE) / "CURRENT").exists()
    finally:
        ours.send("let go")
        process.join()
    age(left / str(ONE))
    assert due(left).delete_if_due({OTHER}) == (ONE,)


def hold(directory: Path, pipe: Connection) -> None:
    """Have a task's state open until told to let go."""
    backend = RocksDbBackend(directory)
    pipe.send("open")
    pipe.recv()
    backend.close()
