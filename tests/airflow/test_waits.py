"""Waits and answers, with what they look at replaced: each statement is one line of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

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
from riverrun_airflow import approval, operators, triggers, waiting
from riverrun_airflow.approval import ApprovalOperator, SettlementOperator, said_of, verdict_of
from riverrun_airflow.looks import Look
from riverrun.errors import BrokerError, ReleaseError, UnderWayError
from riverrun.releases.rows import DifferentRow
from riverrun.hosting.release import Release
from riverrun.hosting.gated import GateVerdict

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

class Kept(dict):
    set = dict.__setitem__
    delete = dict.pop

# A wait goes on in another triggerer, from what is serialized; brokers that do not answer are asked again.
waiting.look = one_after_the_other(Look("far", False))
wait = deferred(lambda: waiting.AwaitOperator(task_id="await", app="clicks", every_s=0).execute({}))
path, arguments = wait.trigger.serialize()
again = import_string(path)(**json.loads(json.dumps(arguments)))
triggers.look = one_after_the_other(BrokerError("gone"), OSError("no API server"), Look("near", False), Look("there", True))
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

# So it does if its driver has met the other run.
note = {"state": "failed", "at_ms": 0, "said": "another run", "is_under_way": True}
operators.look = one_after_the_other(Look("a run is under way", False))
met = {"status": "ok", "said": "", "found": json.dumps(note)}
tell(deferred(lambda: run.driven({"task_state_store": Kept(driver={})}, met)).method_name)

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

HELD_RUNS = """
import json
from datetime import datetime
from types import SimpleNamespace
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput
from riverrun_airflow import approval
from riverrun_airflow.approval import HeldRunQuestion
from riverrun.hosting.gated import GateVerdict

def tell(value):
    print("=" + json.dumps(value))

class Kept(dict):
    set = dict.__setitem__

class Runs:
    def __init__(self, run, judged=None):
        self.run, self.judged, self.done = run, judged, []
    def status(self):
        return self.run
    def publish(self, verdict):
        self.done.append(["publish", verdict])
        return SimpleNamespace(records=3)
    def discard(self):
        self.done.append(["discard"])
    def judge(self):
        self.done.append(["judge"])
        return self.judged

def verdict(name, critical=(), warnings=()):
    outcomes = dict.fromkeys([*critical, *warnings], "failed: 3 rows")
    return GateVerdict(name, "clicks-0@9", "s", {}, outcomes, tuple(critical), tuple(warnings))

def run(found, name="r1"):
    return SimpleNamespace(id=name, version="v1", verdict=found)

authors, asked, notified = [], [], []
hitl.upsert_hitl_detail = lambda **given: asked.append([given["subject"], given["options"], given["body"]])
approval.located = lambda *_: SimpleNamespace(project=lambda: None)

def given(runs):
    def held_by(project, app, by):
        authors.append(by)
        return runs
    approval.held_by = held_by
    return HeldRunQuestion(task_id="decide", app="clicks", notifiers=[lambda context: notified.append("told")])

store = Kept()
context = {"task_state_store": store, "run_id": "m", "task_instance": SimpleNamespace(id="1")}
for found in None, run(None), run(verdict("v1", warnings=["late"])), run(verdict("v2", ["empty"], ["late"])):
    question = given(Runs(found))
    try:
        question.execute(context)
    except TaskAwaitingInput:
        tell([asked[-1][:2], asked[-1][2].count("failed"), store["run"]])
    except AirflowFailException as error:
        tell(str(error))
tell(notified)

def answered(runs, choice, shown=("r1", "v1")):
    event = {"chosen_options": [choice], "params_input": {}, "responded_by_user": {"id": "1", "name": "ann"}}
    event["responded_at"] = datetime.now()
    question = given(runs)
    try:
        done = question.execute_complete({"task_state_store": Kept(run=list(shown)), "run_id": "m"}, event)
        tell([runs.done, done])
    except AirflowFailException as error:
        tell([runs.done, str(error)])

warned = run(verdict("v1", warnings=["late"]))
answered(Runs(warned), "Publish")
answered(Runs(warned), "Discard the run")
answered(Runs(warned, verdict("v3")), "Judge again")
answered(Runs(warned, verdict("v4", warnings=["late"])), "Judge again")
answered(Runs(run(None, "r2")), "Publish")
answered(Runs(None), "Discard the run")
tell(authors[-1])
"""


def test_what_becomes_of_held_outputs_is_asked_and_done(tmp_path: Path) -> None:
    *asked, notified, published, discarded, passed, warned, other, gone, author = printed_by(HELD_RUNS, tmp_path)
    nothing = "clicks: the run has failed, and holds no outputs back: its log says why"
    about = "clicks: what becomes of the outputs of run r1?"
    assert asked == [
        nothing,
        nothing,
        [[about, ["Publish", "Judge again", "Discard the run"]], 1, ["r1", "v1"]],
        [[about, ["Judge again", "Discard the run"]], 2, ["r1", "v2"]],
    ]
    assert notified == ["told", "told"]
    told = {"app": "clicks", "run": "r1"}
    assert published == [[["publish", "v1"]], {**told, "action": "Publish", "records": 3}]
    assert discarded == [[["discard"]], {**told, "action": "Discard the run", "records": 0}]
    assert passed == [[["judge"], ["publish", "v3"]], {**told, "action": "Judge again", "records": 3}]
    assert (warned[0], "Clear this task to be asked about verdict v4" in warned[1]) == ([["judge"]], True)
    assert {(*found, text) for found, text in (other, gone)} == {
        ("clicks: the outputs of run r1 are not held back any more",)
    }
    assert author.startswith("airflow:ann (")


SUBMISSIONS = """
import json
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from riverrun_airflow import releases
from riverrun_airflow import submission
from riverrun.errors import BrokerError, EngineError, ReleaseError
from riverrun.hosting.release import Release, ReleaseStep

def tell(value):
    print("=" + json.dumps(value))

def deferred(action):
    try:
        action()
    except TaskDeferred as wait:
        return wait

class Kept(dict):
    set = dict.__setitem__
    delete = dict.pop

started, told_to_end = [], []

def start(location, driver, request, until_ms):
    if request.app == "full":
        raise OSError("the disk is full")
    if request.app == "broken":
        raise EngineError("it ended before it began")
    if request.app == "interrupted":
        raise KeyboardInterrupt
    started.append(driver)
submission.start = start
submission.end = lambda project, driver: told_to_end.append(driver)
release = Release("clicks", "v1", step=ReleaseStep.REPROCESSED, candidate="v2")
releases.releaser_of = lambda project, app, master, by: SimpleNamespace(status=lambda: release)
kept = Kept()
context = {"task_state_store": kept, "run_id": "m"}
step = releases.ReleaseOperator(task_id="step", app="clicks", step="reprocess", apart=True)

# Another attempt waits for the driver of the first.
for _ in range(2):
    wait = deferred(lambda: step.execute(context))
tell([wait.method_name, wait.trigger.look == kept["driver"], len(started)])

# A driver that was told to end is replaced; the outcome of another one decides, and is forgotten with it.
def concluded(state, may_help=True):
    note = json.dumps({"state": state, "at_ms": 0, "said": "this", "may_help": may_help})
    return step.driven(context, {"status": "ok", "said": "", "found": note})
deferred(lambda: concluded("ended"))
tell([kept["driver"]["driver"] == started[1], len(started)])
result = concluded("done")
told = [result[name] for name in ("step", "state", "live", "candidate", "verdict")]
tell([["step", *told[1:], result["links"]["application"]], len(kept)])
def gone(*_):
    raise BrokerError("gone")
there, releases.releaser_of = releases.releaser_of, gone
for state, may_help in ("failed", True), ("failed", False), ("died", True):
    deferred(lambda: step.execute(context))
    try:
        concluded(state, may_help)
    except AirflowException as error:
        tell([str(error), isinstance(error, AirflowFailException), error.__cause__ is None, len(kept)])

def fails(project, request):
    raise ReleaseError("not now")
releases.take = fails
try:
    releases.ReleaseOperator(task_id="here", app="clicks", step="gate", apart=False).execute(context)
except AirflowFailException as error:
    tell([str(error), True, True, len(kept)])
releases.releaser_of = there

# What was done may be a failure of the task: cleared, it works anew.
def judged(note):
    raise AirflowFailException("the check fails")
deferred(lambda: step.execute(context))
note = json.dumps({"state": "done", "at_ms": 0})
try:
    submission.concluded(step, context, {"status": "ok", "said": "", "found": note}, judged)
except AirflowFailException as error:
    tell([str(error), len(kept)])

# A driver that could not be started, or ended before it began, is none; one of a cancelled task is told to end.
for app in "full", "broken", "interrupted":
    step.app = app
    try:
        step.execute(context)
    except (OSError, EngineError, AirflowException) as error:
        tell([str(error).partition(" (")[0], len(kept)])
tell(told_to_end == [kept["driver"]["driver"]])
"""


LIMITS = """
import itertools, json, threading, time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from riverrun_airflow import drivers, operators, releases, submission, triggers, waiting
from riverrun_airflow.looks import Look
from riverrun_airflow.progress import LoggedProgress
from riverrun_airflow.sessions import now_ms
from riverrun.errors import BrokerError, UnderWayError

def tell(value):
    print("=" + json.dumps(value))

def outcome(action):
    try:
        action()
    except TaskDeferred as wait:
        return wait
    except AirflowTaskTimeout:
        return "timeout"

class Kept(dict):
    set = dict.__setitem__
    delete = dict.pop

started, told_to_end = [], []
submission.start = lambda location, driver, request, until_ms: started.append(until_ms)
far = lambda project, **wanted: Look("far", False)
waiting.look = operators.look = far

def under_way(*_):
    raise UnderWayError("another run")

class Busy(operators.BoundedRunOperator):
    _run = under_way

def tasks(limit):
    given = {"task_id": "t", "app": "clicks", "execution_timeout": limit}
    yield waiting.AwaitOperator(**given)
    yield waiting.WatchOperator(**given, version="v1", minutes=600)
    yield Busy(**given)
    for step in "reprocess", "gate", "cut", "rollback":
        yield releases.ReleaseOperator(**given, step=step, apart=True)
    yield operators.QualityOperator(**given, apart=True)

hours = [None, -1, 1, 2]
wrong = []
for of_task, of_run in itertools.product(hours, hours):
    now = datetime.now(UTC)
    limits = [timedelta(hours=each + 3) if each else None for each in (of_task, of_run)]
    expected = min((each for each in (of_task, of_run) if each), default=None)
    for task in tasks(limits[0]):
        began = now - timedelta(hours=3)
        context = {"task_state_store": Kept(), "run_id": "m", "task": task, "ti": SimpleNamespace(start_date=began),
                   "dag_run": SimpleNamespace(start_date=began), "dag": SimpleNamespace(dagrun_timeout=limits[1])}
        started.clear()
        found = outcome(lambda: task.execute(context))
        if expected == -1:
            is_right = found == "timeout" and not started
        elif started:
            until_ms = found.trigger.serialize()[1]["until_ms"]
            is_right = started == [until_ms] and until_ms == (None if expected is None else
                int((now + timedelta(hours=expected)).timestamp() * 1000))
        elif expected is None:
            is_right = found.timeout is None
        else:
            is_right = abs(timedelta(hours=expected) - found.timeout) < timedelta(minutes=1)
        if not is_right:
            wrong.append([of_task, of_run, type(task).__name__, str(found)])
tell(wrong)

# A driver whose time is up is not replaced: the task fails with Airflow's time-out, and is retried.
step = releases.ReleaseOperator(task_id="t", app="clicks", step="gate", apart=True, execution_timeout=timedelta(hours=1))
begun = datetime.now(UTC) - timedelta(hours=2)
context = {"task_state_store": Kept(driver={"driver": "d", "since_ms": 0}), "run_id": "m", "task": step,
           "ti": SimpleNamespace(start_date=begun)}
started.clear()
note = json.dumps({"state": "ended", "at_ms": 0})
tell([outcome(lambda: step.driven(context, {"status": "ok", "said": "", "found": note})), started])

# The trigger asks a driver to end in time, which an earlier release may have started without a limit.
triggers.end = lambda project, driver: told_to_end.append(driver)
triggers.look_at = lambda project, driver, since_ms: Look("running", False)
for until_ms in None, now_ms() + 10**6, now_ms() - 1:
    triggers.DriverTrigger({"driver": str(until_ms), "since_ms": 0}, until_ms=until_ms)._look()
tell(len(told_to_end))

# It polls soon after the task was deferred for sure, and less often the longer the driver works.
pauses, looks_left = [], [Look("running", False)] * 30 + [Look("done", True)]
triggers.look_at = lambda project, driver, since_ms: looks_left.pop(0)

async def pause(seconds):
    pauses.append(seconds)

async def first_event():
    async for event in triggers.DriverTrigger({"driver": "d", "since_ms": 0}).run():
        return event.payload["status"]

triggers.asyncio.sleep = pause
tell([triggers.asyncio.run(first_event()), pauses[:2], sorted(pauses[1:]) == pauses[1:], pauses[-1]])

# A driver interrupts its work in time, whether brokers answer or not, and is killed if users' code swallows that.
class Gone(dict):
    def put(self, notes):
        raise BrokerError("gone")

class There(dict):
    put = dict.update
    def read(self):
        return self

drivers._HEARTBEAT_SECONDS = 0.2
killed = []

def exited(code):
    killed.append(code)
    raise SystemExit

drivers.os._exit = exited
for topic, until_ms in (Gone(), now_ms() + 700), (There(), now_ms() + 700), (There({"d/end": b""}), None):
    order, ended = drivers.Order("d", "", None, until_ms=until_ms), threading.Event()
    watch = threading.Thread(target=drivers._watch, args=(topic, order, ended, LoggedProgress(drivers.log)), daemon=True)
    try:
        watch.start()
        time.sleep(30)
        tell("never interrupted")
    except KeyboardInterrupt:
        tell(until_ms is None or now_ms() >= until_ms)
    drivers._ENDING_MS = 0
    while not killed:
        time.sleep(0.05)
    ended.set()
    watch.join()
    killed.clear()
    tell(json.loads(topic["d"])["state"] if topic else "brokers are away")
    drivers._ENDING_MS = 60_000
"""

TRIES = """
import json, random
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from riverrun_airflow import submission, transfers
from riverrun_airflow.assets import transferred_by
from riverrun_airflow.sessions import WorkOutcome
from riverrun.errors import EngineError

class Kept(dict):
    set = dict.__setitem__
    delete = dict.pop

submission.start = lambda location, driver, request, until_ms: None
outlet = transferred_by("import", "clicks")

def tries_of(chance):
    # Tries of one task, in its process or by drivers: each finishes some batches, and then ends, fails or dies.
    number, store, finished, announced = 0, Kept(), [], []
    for _ in range(8):
        batches = [f"clicks-0@{n}..{n + 1}" for n in range(number, number + chance.randint(0, 2))]
        number += len(batches)
        finished += batches
        fails, is_apart = chance.random() < 0.5, chance.random() < 0.5
        context = {"task_state_store": store, "ti": SimpleNamespace(), "outlet_events": OutletEventAccessors()}
        task = transfers.ImportOperator(task_id="there", source="in", topic="clicks", apart=is_apart)

        def transfer(project, request, keep):
            for each in batches:
                keep(each)
            if fails:
                raise EngineError("no")
            return WorkOutcome("done", {"read": len(batches), "written": len(batches)})

        transfers.transfer = transfer
        try:
            result = task.execute(context)
        except TaskDeferred:
            note = {"state": "failed" if fails else "done", "at_ms": 0, "ranges": batches}
            note["found"] = {"read": len(batches), "written": len(batches)}
            try:
                result = task.driven(context, {"status": "ok", "said": "", "found": json.dumps(note)})
            except AirflowException:
                continue
        except EngineError:
            continue
        events = [event for outlet_of in context["outlet_events"]._dict.values() for event in outlet_of.asset_alias_events]
        assert {event.source_alias_name for event in events} <= {outlet.name}
        assert {event.dest_asset_key.uri for event in events} <= {"kafka://127.0.0.1:1/clicks"}
        announced += [event.extra["offsets"] for event in events]
        assert all(event.extra["result"] == result for event in events)
        assert result["offsets"] == [event.extra["offsets"] for event in events]
        assert result["empty"] == (not result["offsets"])
        assert announced == finished
    return len(finished)

print("=" + json.dumps([tries_of(random.Random(seed)) for seed in range(20)]))
"""

LAGS = """
import json
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from riverrun_airflow import looks, notices
from riverrun.hosting.inputs import InputLag
from riverrun.hosting.release import Release
from riverrun.records import TopicPartition

def lags(committed):
    app = SimpleNamespace(lag=lambda: [InputLag(TopicPartition("in", 0), False, committed, 0, 5)])
    return SimpleNamespace(app=lambda name, version: app)

looks.releaser_of = lambda *_: SimpleNamespace(status=lambda: Release("clicks", "v1"))
notices.located = lambda *_: SimpleNamespace(project=lambda: None)
kept = SimpleNamespace(xcom_pull=lambda *_, **__: [], xcom_push=lambda key, value: print("=" + json.dumps(value)))
for committed in 3, 99:
    looks.front_door = lambda _project: lags(committed)
    found = looks.look(None, "watched", app="clicks", version="v1", until_ms=0, max_lag=0)
    print("=" + json.dumps([found.said, found.is_over, found.found]))
    notices.lags_of = lambda _project, name: {"v1": lags(committed).app(name, "v1").lag()}
    try:
        print("=" + json.dumps(notices.LagOperator(task_id="look", app="clicks").execute({"ti": kept})))
    except AirflowFailException as error:
        print("=" + json.dumps(str(error)))
"""


def printed_by(script: str, directory: Path, servers: str = "127.0.0.1:1", *arguments: str) -> list[Any]:
    """Run a script next to a project without applications, and return the values that it tells."""
    (directory / "streams.toml").write_text(f'[kafka]\n"bootstrap.servers" = "{servers}"\n')
    environ = {
        "AIRFLOW_HOME": str(directory),
        "AIRFLOW__API__BASE_URL": "http://localhost",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "RIVERRUN_CONFIG": str(directory / "streams.toml"),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("=")]


def test_waits_survive_their_triggerer_and_answers_are_about_one_verdict(tmp_path: Path) -> None:
    results = printed_by(SCRIPT, tmp_path)
    look = {"kind": "ready", "app": "clicks", "max_lag": 1000}
    assert results[0] == ["resume", look, [{"status": "ok", "said": "there", "found": ""}]]
    assert results[1] == [{"status": "failed", "said": "no candidate"}]
    assert results[2:6] == ["no", {"kind": "idle", "app": "clicks"}, "a retry", "resume"]
    shown = results[6]
    assert shown[0] == "Verdict `v7`, at `in-0@3`"
    assert "- b\\_c: failed: 3 &lt;b>" in shown
    assert shown[-1] == "| sums | changed | x\\|y | 1 | 2 |"
    assert results[7] == "v7"
    assert results[8] == "clicks: verdict v6 no longer holds: the last gate's verdict is v7"
    assert results[9] == "clicks: verdict v6 no longer holds: no gate has judged the candidate"
    (by, approved), result, (_, other), refused, rejected = results[10:]
    assert by.startswith("airflow:ann (")
    assert (approved, result, other) == ("v7", "v7", "v6")
    assert refused == "verdict v6 cannot be approved"
    assert rejected == "clicks: ann rejects verdict v7; the live version stays live"


def test_work_is_submitted_once_and_its_outcome_is_that_of_the_task(tmp_path: Path) -> None:
    again, replaced, done, *failures, check, full, broken, interrupted, is_asked = printed_by(SUBMISSIONS, tmp_path)
    assert again == ["driven", True, 1]
    assert replaced == [True, 2]
    assert done == [["step", "reprocessed", "v1", "v2", None, "http://localhost/riverrun/apps/clicks"], 0]
    *apart, here = failures
    assert apart == [["this", False, True, 0], ["this", True, True, 0], ["this", False, True, 0]]
    assert here == ["not now", True, True, 0], "though brokers are away by then"
    assert check == ["the check fails", 0]
    assert full == ["the disk is full", 0]
    assert broken == ["it ended before it began", 0]
    assert interrupted == ["Airflow ended the task", 1]
    assert is_asked


def test_each_finished_batch_of_an_import_is_in_one_event_whatever_tries_fail(tmp_path: Path) -> None:
    (batches,) = printed_by(TRIES, tmp_path)
    assert sum(batches) > len(batches)


def test_offsets_beyond_the_end_are_found_by_watches_and_checks_of_lag(tmp_path: Path) -> None:
    *known, (said, is_over, found), pushed, failure = printed_by(LAGS, tmp_path)
    assert known == [["v1 is live, 2 offsets behind", True, ""], [{"v1": 2}], {"v1": 2}]
    assert is_over
    assert found == "v1: committed offsets are beyond the end: 99 of in-0, which ends at 5. " + found.partition(". ")[2]
    assert said == f"v1 is live, {found.removeprefix('v1: ')}"
    assert pushed == [{"v1": 0}]
    assert failure.startswith(f"clicks: {found}\nHint: Try again in a minute")


def test_waits_and_drivers_end_when_the_time_of_their_task_or_run_is_up(tmp_path: Path) -> None:
    wrong, late, told, polled, *interrupted = printed_by(LIMITS, tmp_path)
    assert wrong == []
    assert late == ["timeout", []]
    assert told == 1
    assert polled == ["ok", [5.0, 1.0], True, 5.0]
    assert interrupted == [True, "brokers are away", True, "ended", True, "ended"]
