"""Spark's answer to a step: a result of each task, or an error."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun import StreamsBuilder
from riverrun.errors import EngineError
from riverrun.records import TaskId
from riverrun.spark.bounded_runs.attempts import run_on_spark
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
