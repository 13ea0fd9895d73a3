"""Events of mapped tasks, which run one after another and finish in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.test_waits import printed_by

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.airflow

SCRIPT = """
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from airflow.sdk.execution_time.context import OutletEventAccessors
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DIED, DONE, RunLog, RunRecord
from riverrun_airflow import operators
from riverrun_airflow.sessions import WrittenRecords

class Kept(dict):
    set = dict.__setitem__

def reported(log, by):
    return [
        WrittenRecords(topic, str(ranges), run.range, run.id, None)
        for run, found in log.written_by("clicks", "v1", by) for topic, ranges in found.items()
    ]

operators.topics_of = lambda application: (("clicks",), ("sums",))
operators.runs_by = lambda planned, by: []
wrong = []
for seed in range(60):
    chance, kept = random.Random(seed), {}
    log, ends = RunLog(SimpleNamespace(written_offsets=lambda tps: dict.fromkeys(tps, ends["sums-0"]))), {"sums-0": 0}
    log._topic = SimpleNamespace(read=lambda: dict(kept), put=lambda values: kept.update(
        {name: value for name, value in values.items() if value}))
    waiting, events, stores = list(range(5)), [], [Kept() for _ in range(5)]

    def execute(index):
        task = operators.BoundedRunOperator(task_id="run", app="clicks", end=f"clicks-0@{index + 1}")
        task.max_records_per_slice = 0
        context = {"task_state_store": stores[index], "run_id": "m", "outlet_events": OutletEventAccessors(),
                   "ti": SimpleNamespace(map_index=index, is_mapped=True)}
        task.execute(context)
        events.extend(
            (index, each.extra["offsets"]) for outlet in context["outlet_events"]._dict.values()
            for each in outlet.asset_alias_events
        )

    def bounded(project, request):
        application = SimpleNamespace(version="v1", id="clicks-v1")
        chosen = RunRange.parse(f"clicks-0@0..{request.end.partition('@')[2]}")
        return SimpleNamespace(range=chosen, application=application, by=request.by)

    def run(planned):
        for state in [DIED] * chance.randint(0, 1) + [DONE]:
            before = dict(ends)
            record = RunRecord(f"{len(kept):03}", "clicks", "v1", planned.by, 1, str(planned.range), outputs_before=before)
            log._put(replace(record, state=state))
            ends["sums-0"] += chance.randint(0, 3)
            if state == DONE:
                log._put(replace(record, state=state, ended_ms=2, outputs_after=dict(ends)))
        # This attempt has not reported yet when others begin.
        while waiting and chance.random() < 0.6:
            execute(waiting.pop(chance.randrange(len(waiting))))
        return SimpleNamespace(tasks=(), warnings=(), totals={})

    operators.bounded, operators.run, operators.written_by = bounded, run, lambda planned, by: reported(log, by)
    while waiting:
        execute(waiting.pop(chance.randrange(len(waiting))))
    # Cleared tasks report nothing again.
    for index in chance.sample(range(5), 2):
        operators.run = lambda planned: SimpleNamespace(tasks=(), warnings=(), totals={})
        execute(index)
    found = sorted((tuple(map(int, offsets.partition("@")[2].split(".."))), index) for index, offsets in events)
    position = 0
    for (start, end), _ in found:
        if start != position or end <= start:
            wrong.append([seed, found])
        position = end
    if position != ends["sums-0"]:
        wrong.append([seed, found, ends])
    for index in range(5):
        own = [offsets for at, offsets in events if at == index]
        if own != sorted(own, key=lambda each: int(each.partition("@")[2].partition("..")[0])):
            wrong.append([seed, index, own])
print("=" + json.dumps(wrong[:3]))
"""


def test_events_of_mapped_tasks_have_each_record_once_in_whatever_order(tmp_path: Path) -> None:
    assert printed_by(SCRIPT, tmp_path) == [[]]
