"""Histories that go wrong are shrunk to the parts that matter."""

from __future__ import annotations

import ast
from dataclasses import replace

from riverrun.simulation.faults import Fault
from tests.histories.drawing import drawn
from tests.histories.history import Event, History, WrongError, event
from tests.histories.shrinking import Failure, Shrinking, as_test, numbered, with_planned_faults

LOST = event("plan_fault", "one", "EndTxn", 1, Fault(is_lost_after=True))


def written(history: History) -> list[str]:
    return [record for each in history.events if each.name == "produce" for record in each.arguments[0]]


def gone_wrong(history: History) -> Failure | None:
    """Return a failure if a worker is killed after a certain record was written, with one of two seeds."""
    names = [each.name for each in history.events]
    if "kill_worker" not in names or "c1" not in written(history) or history.seed not in {1, 7}:
        return None
    return Failure(history, WrongError("c is counted twice"), ("a record is written", "worker one is killed"), history)


def found(*events: Event) -> Failure:
    history = History(
        7, 10_000_000, 1, has_snapshots=True, purge_ms=500, most_fetched=3, by_workers=True, events=events
    )
    failure = gone_wrong(history)
    assert failure is not None
    return failure


def test_only_events_and_records_that_matter_remain() -> None:
    failure = found(
        event("produce", ("a0", "b1")),
        event("start_worker", "one"),
        LOST,
        event("produce", ("a0", "c1", "d0", "c0")),
        event("pass_time", 33.3),
        event("kill_worker", "one"),
    )
    shrunk = Shrinking(failure, 400, fails=gone_wrong).shrink()
    wanted = (event("produce", ("c1",)), event("kill_worker", "one"))
    assert shrunk.history == History(
        7, 0, 0, has_snapshots=False, purge_ms=500, most_fetched=3, by_workers=True, events=wanted
    )
    assert numbered(shrunk).endswith("2. worker one is killed\nThen: WrongError: c is counted twice")


def test_other_turns_are_tried_where_parts_are_missing() -> None:
    def fails(history: History) -> Failure | None:
        return None if len(history.events) < 3 and history.seed == 7 else gone_wrong(history)

    failure = found(event("produce", ("c1",)), event("pass_time", 1.0), event("kill_worker", "one"))
    assert Shrinking(failure, 400, fails=fails).shrink().history.seed == 1


def test_an_error_of_another_kind_shrinks_nothing() -> None:
    def fails(history: History) -> Failure | None:
        failure = gone_wrong(history)
        return failure and replace(failure, error=ValueError("of the shrunk history"))

    failure = found(event("produce", ("c1",)), event("pass_time", 1.0), event("kill_worker", "one"))
    assert Shrinking(failure, 400, fails=fails).shrink() is failure


def test_drawn_faults_become_events_that_can_be_left_out() -> None:
    history = History(
        1,
        0,
        0,
        has_snapshots=False,
        purge_ms=500,
        most_fetched=3,
        by_workers=True,
        events=(event("change_faults", 0.1), event("pass_time", 1.0)),
    )
    assert with_planned_faults(history, [(2, LOST)]).events == (LOST, event("pass_time", 1.0))


def test_a_history_is_printed_as_a_test_with_equal_events() -> None:
    history = replace(drawn(3), events=(*drawn(3).events, LOST))
    call = next(node for node in ast.walk(ast.parse(as_test(history))) if isinstance(node, ast.Call))
    names = {"History": History, "event": event, "Fault": Fault}
    assert eval(ast.unparse(call), names) == history  # noqa: S307 - our own text
