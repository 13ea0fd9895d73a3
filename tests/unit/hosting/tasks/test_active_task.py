"""The states of active tasks."""

from __future__ import annotations

from riverrun.hosting.active_task import TRANSITIONS, TaskState


def test_only_a_restored_task_runs() -> None:
    before_running = {state for state, targets in TRANSITIONS.items() if TaskState.RUNNING in targets}
    assert before_running == {TaskState.RESTORING}


def test_every_task_is_suspended_before_it_is_closed_and_then_stays_closed() -> None:
    assert TRANSITIONS[TaskState.SUSPENDED] == {TaskState.CLOSED}
    before_closed = {state for state, targets in TRANSITIONS.items() if TaskState.CLOSED in targets}
    assert before_closed == {TaskState.SUSPENDED}
    assert TRANSITIONS[TaskState.CLOSED] == set()
