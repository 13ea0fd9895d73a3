"""The states of tasks in a stream thread."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.errors import StreamsError
from riverrun.records import TaskId
from riverrun.worker.tasks.task_states import STARTING, TRANSITIONS, StreamTask, StreamTaskState


class Owned:
    id = TaskId(0, 1)


def task_in(state: StreamTaskState) -> StreamTask:
    owned: Any = Owned()
    return StreamTask(owned, state)


@pytest.mark.parametrize("state", StreamTaskState)
def test_a_task_moves_along_the_table_and_no_other_way(state: StreamTaskState) -> None:
    for target in StreamTaskState:
        task = task_in(state)
        if target in TRANSITIONS[state]:
            task.move_to(target)
            assert task.state is target
        else:
            with pytest.raises(StreamsError, match=f"cannot go from {state.value} to {target.value}"):
                task.move_to(target)
            assert task.state is state


def test_only_a_restored_task_runs_and_each_task_can_be_closed() -> None:
    before_running = {state for state, targets in TRANSITIONS.items() if StreamTaskState.RUNNING in targets}
    assert before_running == {StreamTaskState.RESTORING, StreamTaskState.COMMITTING}
    never_closed = {state for state, targets in TRANSITIONS.items() if StreamTaskState.CLOSED not in targets}
    assert never_closed == {StreamTaskState.CREATED, StreamTaskState.CLOSED}


def test_a_task_that_starts_does_not_run() -> None:
    running = {state for state in StreamTaskState if task_in(state).is_running}
    assert running == {StreamTaskState.RUNNING, StreamTaskState.COMMITTING}
    assert not running & STARTING
