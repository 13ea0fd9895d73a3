"""Attempts of a bounded run's task repeat its slice without the records that were set aside, as long as these are few."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import BrokerError, ProcessingError, SetAsideError
from riverrun.spark.bounded_runs import executor
from riverrun.spark.tasks import inputs
from riverrun.spark.tasks.setting_aside import MOST_SET_ASIDE, without_set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SET_ASIDE: Any = SimpleNamespace(task_id="0_0")


def test_an_attempt_is_repeated_without_what_it_set_aside() -> None:
    seen: list[int] = []

    def attempt(aside: Sequence[Any]) -> str:
        seen.append(len(aside))
        if len(aside) < MOST_SET_ASIDE:
            message = "in-0@5 is set aside"
            raise SetAsideError(message, SET_ASIDE)
        return "done"

    assert without_set_aside(attempt) == "done"
    assert seen == [*range(MOST_SET_ASIDE + 1)]


def test_a_slice_of_which_too_many_records_are_set_aside_fails() -> None:
    seen: list[int] = []

    def attempt(aside: Sequence[Any]) -> None:
        seen.append(len(aside))
        message = f"in-0@{len(aside)} is set aside: ValueError: bad"
        raise SetAsideError(message, SET_ASIDE)

    with pytest.raises(ProcessingError, match=f"than {MOST_SET_ASIDE} records aside.*in-0@100 is set aside") as raised:
        without_set_aside(attempt)
    assert len(seen) == MOST_SET_ASIDE + 1
    assert "continue" in (raised.value.hint or "")
    assert "filter" in (raised.value.hint or "")


def test_each_repeat_of_a_slice_waits_anew_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_aside: Any) -> Any:
        message = "no brokers"
        raise BrokerError(message, retriable=True)

    def sets_aside(_aside: Any) -> Any:
        time.sleep(0.3)
        message = "in-0@5 is set aside"
        raise SetAsideError(message, SET_ASIDE)

    attempts: list[Callable[[Any], Any]] = [away, sets_aside, away, list]
    admin: Any = SimpleNamespace(is_answered=lambda _seconds: True)
    streams = SimpleNamespace(task_timeout_ms=200)
    connected = SimpleNamespace(admin=admin, application=SimpleNamespace(config=SimpleNamespace(streams=streams)))
    monkeypatch.setattr(executor, "connected_here", lambda *_: connected)
    monkeypatch.setattr(executor, "_take_on", lambda _work, _connected, _sent, aside: attempts.pop(0)(aside))
    monkeypatch.setattr(inputs, "_RETRY_SECONDS", 0)
    work: Any = SimpleNamespace(task_id="0_0", job=None)
    done: Any = executor.run_task(work, lambda _job: None)  # type: ignore[arg-type,return-value]
    assert done == [SET_ASIDE]
