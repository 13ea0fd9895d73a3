"""Waits and answers, with what they look at replaced: each statement is one line of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.airflow

SCRIPT = """
import asyncio, json
from datetime import datetime
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk._shared.module_loading import import_string
from millrace_airflow import approval, operators, triggers, waiting
from millrace_airflow.approval import ApprovalOperator, SettlementOperator, said_of, verdict_of
from millrace_airflow.sessions import Look
from pipeline.errors import BrokerError, ReleaseError, UnderWayError
from pipeline.releases.differences.differing import DifferentRow
from pipeline.releases.control_topic.registry import Release
from pipeline.releases.control_topic.verdicts import GateVerdict

def tell(value):
    print("=" + json.dumps(value))

def one_after_the_other(*looks):
    left = list(looks)
    def look(project, **wanted):
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found
    return look

async def fired(trigger):
    return [event.payload async for event in trigger.run()]

def deferred(action):
    try:
        action()
    except TaskDeferred as wait:
        return wait

# A wait goes on in another triggerer, from what is serialized; brokers that do not answer are asked again.
waiting.look = one_after_the_other(Look("far", False))
wait = deferred(lambda: waiting.AwaitOperator(task_id="await", app="clicks", every_s=0).execute({}))
path, arguments = wait.trigger.serialize()
again = import_string(path)(**json.loads(json.dumps(arguments)))
triggers.look = one_after_the_other(BrokerError("gone"), Look("near", False), Look("there", True))
events = asyncio.run(fired(again))
tell([wait.method_name, arguments["look"], events])
triggers.look = one_after_the_other(ReleaseError("no candidate"))
tell(asyncio.run(fired(again)))
try:
    triggers.ended({"status": "failed", "said": "no"})
except AirflowFailException as error:
    tell(str(error))

# A run beside another one waits without a slot; beside a worker it is left to retries.
def refused(self, context):
    raise UnderWayError("another run")
operators.BoundedRunOperator._run = refused
operators.look = one_after_the_other(Look("a run is under way", False), Look("no run is", True))
run = operators.BoundedRunOperator(task_id="run", app="clicks")
tell(deferred(lambda: run.execute({})).trigger.look)
try:
    run.execute({})
except UnderWayError:
    tell("a retry")

# What a person is shown has no markup of the data's, and an answer is about one verdict.
verdict = GateVerdict("v7", "in-0@3", "s", outcomes={"a": "passed", "b_c": "failed: 3 <b>"}, warnings=("b_c",))
row = DifferentRow("sums", "changed", {"key": "x|y"}, {"": 1}, {"": 2})
tell(said_of(verdict, [row]).splitlines())
release = Release("clicks", "v1", candidate="v2", verdict=verdict)
for wanted, held in ("v7", release), ("v6", release), ("v6", Release("clicks", "v1")):
    try:
        tell(verdict_of(held, wanted).id)
    except AirflowFailException as error:
        tell(str(error))

class Releaser:
    def __init__(self, by):
        self.by = by
    def approve(self, verdict):
        tell([self.by, verdict])
        if verdict != "v7":
            raise ReleaseError(f"verdict {verdict} cannot be approved")
approval.located = lambda *_: SimpleNamespace(project=lambda: None)
approval.releaser_of = lambda project, app, master, by: Releaser(by)
approve = ApprovalOperator(task_id="approve", app="clicks")

class Kept(dict):
    set = dict.__setitem__

def answered(shown, choice):
    event = {"chosen_options": [choice], "params_input": {}, "responded_by_user": {"id": "1", "name": "ann"}}
    event["responded_at"] = datetime.now()
    try:
        tell(approve.execute_complete({"task_state_store": Kept(verdict=shown), "run_id": "m"}, event))
    except AirflowFailException as error:
        tell(str(error))
for shown, choice in ("v7", "Approve"), ("v6", "Approve"), ("v7", "Reject"):
    answered(shown, choice)
"""


def test_waits_survive_their_triggerer_and_answers_are_about_one_verdict(tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    environ = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "MILLRACE_CONFIG": str(tmp_path / "streams.toml"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("=")]
    look = {"kind": "ready", "app": "clicks", "max_lag": 1000}
    assert told[0] == ["resume", look, [{"status": "ok", "said": "there", "found": ""}]]
    assert told[1] == [{"status": "failed", "said": "no candidate"}]
    assert told[2:5] == ["no", {"kind": "idle", "app": "clicks"}, "a retry"]
    shown = told[5]
    assert shown[0] == "Verdict `v7`, at `in-0@3`"
    assert "- b\\_c: failed: 3 &lt;b>" in shown
    assert shown[-1] == "| sums | changed | x\\|y | 1 | 2 |"
    assert told[6] == "v7"
    assert told[7] == "clicks: verdict v6 no longer holds: the last gate's verdict is v7"
    assert told[8] == "clicks: verdict v6 no longer holds: no gate has judged the candidate"
    (by, approved), result, (_, other), refused, rejected = told[9:]
    assert by.startswith("airflow:ann (")
    assert (approved, result, other) == ("v7", "v7", "v6")
    assert refused == "verdict v6 cannot be approved"
    assert rejected == "clicks: ann rejects verdict v7; the live version stays live"
