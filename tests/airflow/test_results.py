"""Results of tasks, as other tasks and readers of topics get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.test_waits import printed_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.airflow

SCRIPT = """
import json
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunRecord
from airflow.sdk.execution_time import task_runner as runner
from riverrun_airflow import operators, submission
from riverrun_airflow.results import result_of_runs
from riverrun_airflow.sessions import WrittenRecords

def tell(value):
    print("=" + json.dumps(value))

class Kept(dict):
    set = dict.__setitem__
    delete = dict.pop

chosen, nothing = RunRange.parse("clicks-0@5..9"), RunRange.parse("clicks-0@9..9")

def record(run, state, **more):
    return RunRecord(run, "clicks", "v1", "ann", 1000, str(chosen), state, **more)

failed = record("1", "failed", ended_ms=2000)
done = record("2", "done", ended_ms=3500, records_in=4, dropped={"late": 2, "null-key": 1}, engine="local",
              snapshots={"0_0": "a.json"}, records_out_by_topic={"sums": 3})
tell(result_of_runs("clicks", "v1", chosen, [failed, done]).told())
unread, died = record("3", "done", ended_ms=1500), record("4", "died")
closing = record("5", "done", ended_ms=1500, records_out_by_topic={"sums": 1})
for runs, within in (
    ([], nothing), ([], chosen), ([unread], chosen), ([died, unread], chosen), ([died, unread], nothing),
    ([closing], nothing),
):
    tell(result_of_runs("clicks", "v1", within, runs).empty)

# The task of an empty run is skipped if its author wants that, and keeps its result; a driver's result is treated alike.
application = SimpleNamespace(version="v1", id="clicks-v1")
planned = SimpleNamespace(range=nothing, application=application)
requests = []
operators.bounded = lambda project, request: requests.append(request) or planned
operators.run = lambda chosen: SimpleNamespace(tasks=(), warnings=(), totals={})
operators.runs_by = lambda planned, by: found
operators.written_by = lambda planned, by: [
    WrittenRecords(topic, "sums-0@0..3", str(chosen), run.id, run.records_out_by_topic[topic])
    for run in found for topic in run.records_out_by_topic
]
operators.topics_of = lambda application: (("clicks",), ("sums",))

def context():
    pushed = {}
    ti = SimpleNamespace(xcom_push=pushed.__setitem__, task=SimpleNamespace(multiple_outputs=has_fields))
    return {"task_state_store": Kept(), "run_id": "m", "ti": ti, "outlet_events": OutletEventAccessors()}, pushed

def outcome(action, pushed):
    try:
        return ["returns", action()["empty"]]
    except AirflowSkipException:
        return ["is skipped", pushed["return_value"]["empty"] and pushed.get("empty", "without fields")]

found = []
for skip, has_fields in (False, True), (True, True), (True, False):
    task = operators.BoundedRunOperator(task_id="run", app="clicks", skip_if_empty=skip, max_records_per_slice="500")
    given, pushed = context()
    tell(outcome(lambda: task.execute(given), pushed))
    given, pushed = context()
    given["task_state_store"].set("driver", {"driver": "d"})
    note = json.dumps({"state": "done", "at_ms": 0})
    tell(outcome(lambda: task.driven(given, {"status": "ok", "said": "", "found": note}), pushed))
tell({request.options.max_records_per_slice for request in requests} == {500})
task.max_records_per_slice = "many"
try:
    task.execute(context()[0])
except AirflowFailException as error:
    tell(str(error))

# What was published is judged, even if the run before is skipped, unless it has passed.
for is_done in False, True:
    operators.is_judged = lambda project, app: is_done
    operators.judge_live = lambda project, request: exec('raise ValueError("judges")')
    judge = operators.QualityOperator(task_id="judge", app="clicks", skip_if_judged=True)
    try:
        judge.execute(context()[0])
    except (AirflowSkipException, AirflowFailException, ValueError) as error:
        tell([type(error).__name__, judge.trigger_rule])

# An event has the result of its task, and the records of its own topic.
found, task.max_records_per_slice = [done], 0
given, _ = context()
result = task.execute(given)
(event,) = [event for outlet in given["outlet_events"]._dict.values() for event in outlet.asset_alias_events]
tell([event.dest_asset_key.uri, event.extra["records"], event.extra["result"] == result, result["empty"]])
tell([event.extra["reason"], event.extra["recomputed"]])

# Corrections say that they are some, and are announced only if the task's author wants that.
for announces in True, False:
    task = operators.BoundedRunOperator(task_id="run", app="clicks", recompute_from="2026-01-01", end="2026-01-02",
                                        announce_corrections=announces)
    found = []
    given, _ = context()
    given["task_state_store"].set("corrected", {"compared": 3, "corrections": 2, "corrected": [["sums", "sums-0@5..7"]]})
    operators.recompute = lambda project, request: {}
    task.execute(given)
    tell([[each.extra[name] for name in ("reason", "recomputed", "offsets")] for outlet in
          given["outlet_events"]._dict.values() for each in outlet.asset_alias_events])

# Other tasks get the result, and each field of it by its name, as the guide says.
from airflow.sdk.execution_time.task_runner import _push_xcom_if_needed
from riverrun_airflow import archives, held, releases, transfers, waiting
from airflow.sdk import DAG
with DAG("own", schedule=None) as own:
    operators.BoundedRunOperator(task_id="a", app="clicks")
    operators.QualityOperator(task_id="b", app="clicks")
    releases.ReleaseOperator(task_id="c", app="clicks", step="gate")
    held.HeldRunOperator(task_id="d", app="clicks")
    archives.ArchiveOperator(task_id="e", name="clicks")
    transfers.ImportOperator(task_id="f", source="in", topic="t")
    transfers.ExportOperator(task_id="g", topic="t", target="out")
    waiting.ProcessedSensor(task_id="h", app="clicks")
    waiting.NewRecordsSensor(task_id="i", topics="t")
for made in own.tasks:
    pushed = {}
    ti = SimpleNamespace(task=made, is_mapped=False, xcom_push=pushed.__setitem__)
    runner._xcom_push = lambda ti, key, value, mapped_length=None: pushed.__setitem__(key, value)
    _push_xcom_if_needed({"app": "clicks", "records_out": {"sums": 3}}, ti, SimpleNamespace(info=lambda *_, **__: None))
    output = made.output["records_out"]
    tell([output.key in pushed, pushed[output.key], pushed["return_value"]["app"]])

# A class of a user's may return anything.
class Told(operators.BoundedRunOperator):
    def execute(self, context):
        return str(super().execute(context))
class Sensed(waiting.ProcessedSensor):
    def result(self, context, found):
        return 5
class Named(operators.BoundedRunOperator):
    ui_color = "#fff"
given = {"task_id": "t", "app": "clicks"}
tell([each.multiple_outputs for each in (Told(**given), Sensed(**given), Named(**given), Told(**given, multiple_outputs=True))])
"""


def test_the_result_of_a_run_is_of_all_attempts_and_is_carried_by_events(tmp_path: Path) -> None:
    result, *empty = printed_by(SCRIPT, tmp_path)
    assert result == {
        "app": "clicks",
        "version": "v1",
        "range": "clicks-0@5..9",
        "empty": False,
        "records_in": 4,
        "records_out": {"sums": 3},
        "dropped": {"late": 2, "null-key": 1},
        "late": 2,
        "duration_s": 3.5,
        "engine": "local",
        "snapshots": {"0_0": "a.json"},
        "runs": {"1": "failed", "2": "done"},
        "links": {
            "application": "http://localhost/riverrun/apps/clicks",
            "run": "http://localhost/riverrun/apps/clicks#run-2",
        },
        "dry": False,
        "corrections": 0,
        "compared": 0,
    }
    assert empty[:6] == [True, False, True, False, False, False], "what failed attempts have done is not known"
    assert (
        empty[6:12]
        == [[each, True] for each in ("returns", "is skipped") for _ in range(2)]
        + [["is skipped", "without fields"]] * 2
    )
    assert empty[12:] == [
        True,
        "max_records_per_slice is 'many', which is not a natural number",
        ["ValueError", "none_failed"],
        ["AirflowSkipException", "none_failed"],
        ["kafka://127.0.0.1:1/sums", 3, True, False],
        ["run", None],
        [["correction", {"from": "2026-01-01", "to": "2026-01-02"}, "sums-0@5..7"]],
        [],
        *[[True, {"sums": 3}, "clicks"]] * 9,
        [False, False, True, True],
    ]


HELD_SCRIPT = """
import json
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from riverrun.hosting.gated import GateVerdict
from riverrun_airflow import held
from riverrun_airflow.held import HeldRunOperator

def tell(value):
    print("=" + json.dumps(value))

verdict = GateVerdict("v", "clicks-0@9", "s", outcomes={"sums: it has rows": "failed"}, critical=("sums: it has rows",))
run = SimpleNamespace(id="r", version="v1")
runs = SimpleNamespace(
    status=lambda: run, publish=lambda verdict: SimpleNamespace(id="r", records=3), judge=lambda: verdict
)
held.held_by = lambda project, app, by: runs
held.moved_by_step = lambda project, app, version, step: ((f"{app}-{version}-staging-sums",), ("sums",))
for action in "publish", "judge":
    task = HeldRunOperator(task_id="decide", app="clicks", action=action)
    try:
        tell(task.execute({"run_id": "m"}))
    except AirflowFailException as error:
        tell(str(error))
    told = task.get_openlineage_facets_on_complete(None)
    assert told == task.get_openlineage_facets_on_failure(None)
    tell([[each.name for each in told.inputs], [each.name for each in told.outputs]])
"""


def test_what_a_decision_about_a_held_run_publishes_or_judges_is_lineage(tmp_path: Path) -> None:
    assert printed_by(HELD_SCRIPT, tmp_path) == [
        {"app": "clicks", "action": "publish", "run": "r", "records": 3},
        [["clicks-v1-staging-sums"], ["sums"]],
        "clicks: sums: it has rows: failed",
        [["sums"], []],
    ]


ARCHIVE_SCRIPT = """
import json
import os
import sys
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from riverrun_airflow.archives import ArchiveOperator

def tell(value):
    print("=" + json.dumps(value))

def kept_by(task):
    return SimpleNamespace(task=task, xcom_push=lambda key, value: key == "return_value" and tell([key, value["empty"]]))

topic, url = sys.argv[1:]
with open(os.environ["RIVERRUN_CONFIG"], "a") as file:
    file.write(f'[archives.shop]\\ntopics = ["{topic}"]\\nurl = "{url}"\\n')
whole = {"topics": [topic], "url": url}
for given in whole, {**whole, "skip_if_empty": True}, {"topics": [topic]}, {"name": "shop"}, {"name": "shop", **whole}:
    task = ArchiveOperator(task_id="archive", **given)
    try:
        result = task.execute({"ti": kept_by(task)})
        tell([result["offsets"], result["records_in"], result["empty"], result["bytes"] > 0])
    except (AirflowSkipException, AirflowFailException) as error:
        tell(str(error))
    tell([each.name for each in task.get_openlineage_facets_on_complete(None).inputs])
"""


@pytest.mark.broker
def test_topics_are_archived_and_the_result_says_how_far(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(2, unique)
    broker.write(unique, [(b"k%d" % n, b"v", n) for n in range(9)])
    told = printed_by(ARCHIVE_SCRIPT, tmp_path, broker.bootstrap_servers, unique, str(tmp_path / "archive"))
    assert told[0] == [{unique: 9}, {unique: 9}, False, True]
    assert told[1] == [unique]
    assert told[2] == ["return_value", True]
    assert told[3] == "there was nothing to process"
    assert "needs the topics and a URL" in told[5]
    assert told[7:9] == [[{unique: 0}, {unique: 0}, True, False], [unique]]
    assert "Archive shop has its topics and its URL from streams.toml" in told[9]
