"""Engines of bounded runs: which one is chosen, and its answer to a step: a result of each task, or an error."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun import StreamsBuilder
from riverrun.errors import EngineError
from riverrun.records import TaskId
from riverrun.spark.bounded_runs.attempts import MAX_LOCAL_OFFSETS, chosen_engine, run_here, run_on_spark
from riverrun.spark.session import SessionOnDemand, on_demand
from riverrun.spark.tasks.work import SliceWork, TaskResult


class ForgetfulSpark:
    """Does nothing, claims success, and returns the results of some tasks only, which no real Spark can be made to do."""

    def __init__(self, *known: str) -> None:
        self._rows = [SimpleNamespace(result=json.dumps(asdict(TaskResult(name, 1, 0, {})))) for name in known]

    def range(self, *_: int) -> Any:
        return SimpleNamespace(mapInArrow=lambda *_: SimpleNamespace(collect=lambda: self._rows))


def test_a_run_does_not_go_on_without_what_a_task_did() -> None:
    works: Any = [SliceWork(None, TaskId(0, number), {}) for number in range(3)]  # type: ignore[arg-type]  # nobody looks
    with pytest.raises(EngineError, match=r"without results of tasks 0_1, 0_2"):
        run_on_spark(ForgetfulSpark("0_0"), works, lambda _job: StreamsBuilder().build())
    results = run_on_spark(ForgetfulSpark("0_0", "0_1", "0_2"), works, lambda _job: StreamsBuilder().build())
    assert [result.task_id for result in results] == ["0_0", "0_1", "0_2"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (MemoryError("boom"), "MemoryError: boom"),
        (SystemExit("boom"), r"RuntimeError: sys.exit\('boom'\) was called"),
        (GeneratorExit("boom"), r"RuntimeError: GeneratorExit\('boom'\) was raised"),
        (KeyboardInterrupt("boom"), r"RuntimeError: KeyboardInterrupt\('boom'\) was raised"),
    ],
)
def test_whatever_ends_a_task_here_is_an_error_with_its_cause_after_all_attempts(
    error: BaseException, text: str
) -> None:
    works: Any = [SliceWork(None, TaskId(0, 1), {})]  # type: ignore[arg-type]  # nobody looks
    tries = []

    def build(_job: Any) -> Any:
        tries.append(1)
        raise error

    with pytest.raises(EngineError, match=rf"^Task 0_1 cannot be processed: {text}$"):
        run_here(works, build, attempts=3, admin=None)  # type: ignore[arg-type]  # nobody asks it
    assert len(tries) == 3


def test_ctrl_c_is_no_reason_for_another_attempt() -> None:
    works: Any = [SliceWork(None, TaskId(0, 1), {})]  # type: ignore[arg-type]  # nobody looks

    def build(_job: Any) -> Any:
        return signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_here(works, build, attempts=3, admin=None)  # type: ignore[arg-type]  # nobody asks it


def chosen(master: str | None, wanted: str = "auto", offsets: int = 7, settings: Any = None) -> tuple[str, str, int]:
    engine = chosen_engine(wanted, on_demand(object, master, settings or {}), offsets)
    return engine.name, engine.reason, engine.attempts


def test_small_runs_on_this_machine_need_no_spark_unless_somebody_says_so() -> None:
    few = f"7 offsets, at most {MAX_LOCAL_OFFSETS}"
    many = f"{MAX_LOCAL_OFFSETS + 1} offsets, more than {MAX_LOCAL_OFFSETS}"
    assert chosen(None) == ("local", few, 4)
    assert chosen("local") == chosen("local[2]") == ("local", few, 1)
    assert chosen("local[*,3]", settings={"spark.task.maxFailures": "9"}) == ("local", few, 3)
    assert chosen(None, offsets=MAX_LOCAL_OFFSETS + 1) == ("spark", many, 4)
    for master in ("spark://host:7077", "yarn", "sc://host:15002", "local-cluster[2,1,1024]"):
        assert chosen(master)[:2] == ("spark", f"its master is {master}")
        assert chosen(None, settings={"spark.master": master})[:2] == ("spark", f"its master is {master}")
    assert chosen("yarn", "local", settings={"spark.task.maxFailures": "9"}) == ("local", "as chosen", 9)
    assert chosen(None, "spark")[:2] == ("spark", "as chosen")
    for passed in (object(), object, SessionOnDemand(object)):
        assert str(chosen_engine("auto", passed, 7)) == "spark (its session was passed)"
