"""The DAGs: they parse without an engine, and run for real on Airflow's own machinery."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace_airflow import sessions
from pipeline import LONG
from pipeline.config import ProjectConfig
from pipeline.project.sessions import SparkSessions
from pipeline.releases.registry import Registry
from pipeline.spark.planning.runs import RunLog
from pipeline.spark.ranges import RunRange

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINES = ("confluent_kafka", "great_expectations", "pyspark", "rocksdict")

pytestmark = pytest.mark.airflow


def environment(home: Path, dags: Path) -> dict[str, str]:
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    return {**os.environ, **settings}


def test_copied_dags_find_the_project_and_load_no_engine_in_under_a_second(tmp_path: Path) -> None:
    shutil.copy(ROOT / "dags" / "millrace.py", tmp_path)
    code = f"""
import runpy, sys, time
import airflow.sdk
from airflow.sdk import DAG, BaseHook, BaseOperator
began = time.process_time()
found = runpy.run_path({str(tmp_path / "millrace.py")!r})
print(*sorted(name for name in found if hasattr(found[name], "dag_id")))
print(*[name for name in {ENGINES!r} if name in sys.modules], "engines")
print(time.process_time() - began)
"""
    environ = environment(tmp_path, tmp_path) | {
        "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(
            {"conn_type": "millrace", "extra": {"project": str(ROOT / "streams.toml")}}
        )
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    dags, engines, seconds = done.stdout.splitlines()[-3:]
    assert dags.split() == [
        *("delays__backfill", "delays__quality", "delays__release", "delays__run"),
        *("word-count__backfill", "word-count__release"),
    ]
    assert engines == "engines"
    assert float(seconds) < 1


@pytest.mark.spark
def test_a_task_told_to_end_while_spark_works_says_so_and_is_retried(tmp_path: Path) -> None:
    code = f"""
import os, signal, threading, time
from functools import partial
from pathlib import Path
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from millrace_airflow.acting import acting
from millrace_airflow.operators import ReleaseOperator
from pipeline.spark.engine.failures import spark_failures
from pipeline.spark.session import spark_session

working, began = Path({str(tmp_path / "working")!r}), time.monotonic()

def works(batches):
    working.touch()
    time.sleep(600)
    yield from batches

def kill():
    while not working.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

def action():
    with spark_failures("work"):
        return str(spark_session().range(1).mapInArrow(works, "id bigint").collect())

operator = ReleaseOperator(task_id="step", config="streams.toml", app="shop", step="gate")
signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())  # as Airflow does
threading.Thread(target=kill).start()
try:
    acting(action)
except AirflowFailException:
    print("not tried again")
except AirflowException as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(tmp_path, tmp_path),
    )
    said = "The task was told to end (SIGTERM). What is committed stays; another attempt does the rest."
    assert said in done.stdout.splitlines(), (
        done.stdout[-3000:] + done.stderr[-3000:]
    )  # the bridge to Java logs after it
    assert "reentrant" not in done.stdout + done.stderr


def test_what_waiting_may_mend_is_left_to_retries(tmp_path: Path) -> None:
    code = """
from airflow.sdk.exceptions import AirflowFailException
from millrace_airflow.acting import acting
from pipeline import errors

def told(error):
    def action():
        raise error

    try:
        acting(action)
    except AirflowFailException:
        return "fails"
    except Exception:
        return "is tried again"

for error in errors.UnderWayError("a run"), errors.BegunRangeError("more"), errors.EngineError("Spark"):
    print(told(error))
for error in errors.RangeError("gone"), errors.ReleaseError("no candidate"), errors.ConfigError("unknown"):
    print(told(error))
print(told(errors.BrokerError("busy", retriable=True)), told(errors.BrokerError("denied")), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(tmp_path, tmp_path)
    )
    again, fails = ["is tried again"], ["fails"]
    assert done.stdout.splitlines()[-8:] == [*again * 3, *fails * 3, *again, *fails], done.stderr[-3000:]


@pytest.mark.broker
@pytest.mark.spark
def test_a_bounded_run_a_release_and_transfers_run_as_dags(
    broker: Any, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = (ROOT / "tests" / "system" / "example_app.py").read_text()
    (tmp_path / f"{unique}.py").write_text(example.replace('"example"', f'"{unique}"'))
    (tmp_path / "streams.toml").write_text(
        f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{unique}]
topology = "{unique}:build"
quality = "{unique}:expectations"
schedule = "0 */6 * * *"
[apps.{unique}.versions]
v2 = "{unique}:build_v2"
"""
    )
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "project.py").write_text(
        "# airflow dag\nfrom pathlib import Path\nfrom millrace_airflow.dag_factory import dags\n"
        f"globals().update(dags(Path({str(tmp_path / 'streams.toml')!r})))\n"
    )
    (dags / "transfers.py").write_text(
        f"""
from airflow.sdk import DAG
from millrace_airflow.transfers import ExportOperator, ImportOperator

with DAG("{unique}_transfers", schedule=None):
    both = {{"config": "{tmp_path}/streams.toml", "topic": "{unique}.copied", "format": "json"}}
    there = ImportOperator(task_id="there", source="{tmp_path}/in", key=["id"], **both)
    back = ExportOperator(task_id="back", target="{tmp_path}/out", **both)
    there >> back
"""
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    broker.create(2, *(f"{unique}.{name}" for name in ("payments", "sums", "receipts", "copied")))
    broker.write(f"{unique}.payments", [(b"ann/1", LONG.serialize(5), 1), (b"ann/2", LONG.serialize(-2), 2)])
    env = environment(tmp_path / "airflow", dags)
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [env.get("PYTHONPATH")])])

    airflow = partial(run_airflow, env)

    def total() -> int:
        return [LONG.deserialize(r.value) for r in broker.read(f"{unique}.sums")][-1]

    airflow("db", "migrate")
    airflow("dags", "test", f"{unique}__run")
    assert total() == 5
    said = airflow("dags", "test", f"{unique}__backfill", "--conf", '{"from": "earliest", "dry_run": true}')
    assert re.search(rf"{unique}\.sums: [1-9]\d* records would be written", said), said[-3000:]
    (done,) = RunLog(broker.kafka).runs(unique)
    project = ProjectConfig.load(tmp_path / "streams.toml", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(SparkSessions, "session", no_spark)
    for wish in (sessions.Wish(unique, "committed", "latest"), sessions.Wish(unique, "committed", "1970-01-01")):
        assert run_again(project, wish, None) == 0
    assert run_again(project, sessions.Wish(unique, "committed", "latest"), done.range) == 0
    said = released(unique, env, tmp_path)
    verdict = Registry(broker.kafka).read(unique, "v1").verdict
    assert f"Verdict `{verdict.id if verdict else ''}`" in said
    assert "expect\\_column\\_pair\\_values\\_to\\_be\\_equal" in said
    assert f"| {unique}.sums | changed | ann | 5 | 3 |" in said
    assert total() == 3
    by = [done.by.partition("/")[0] for done in Registry(broker.kafka).history(unique)]
    assert list(dict.fromkeys(by)) == [f"airflow:{unique}__release", f"airflow:ann ({unique}__release"]
    require_looks(project, unique)
    for _ in range(2):  # the second time, nothing is new
        airflow("dags", "test", f"{unique}_transfers")
        assert sorted(r.value for r in broker.read(f"{unique}.copied")) == [b'{"id":1}', b'{"id":2}']
        lines = [line for file in (tmp_path / "out").glob("*/*.json") for line in file.read_text().splitlines()]
        assert sorted(json.loads(line)["value"] for line in lines) == ['{"id":1}', '{"id":2}']


def run_airflow(env: dict[str, str], *arguments: str) -> str:
    """Run a command of Airflow; gives what it shows."""
    command = [str(Path(sys.executable).with_name("airflow")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-6000:]
    return shown


ANSWERING = """
import sys, threading, time
from functools import partial
from pathlib import Path
from airflow import settings
from airflow.__main__ import main
from airflow.cli.commands import dag_command  # two threads that import it wait for each other
from airflow.models import TaskInstance
from airflow.models.hitl import HITLDetail
from airflow.models.trigger import handle_event_submit
from airflow.sdk import timezone
from airflow.triggers.base import TriggerEvent
from sqlalchemy import select
from sqlalchemy.orm import configure_mappers

def answer():
    while True:
        time.sleep(0.2)
        with settings.NonScopedSession() as session:
            asked = session.scalar(select(TaskInstance).where(TaskInstance.state == "awaiting_input"))
            if asked is None:
                continue
            detail = session.get(HITLDetail, asked.id)
            Path(body).write_text(detail.body)
            detail.responded_by, detail.responded_at = {"id": "1", "name": "ann"}, timezone.utcnow()
            detail.chosen_options, detail.params_input = ["Approve"], {}
            event = TriggerEvent(detail.as_resume_event_payload())
            handle_event_submit(event, task_instance=asked, session=session)
            session.commit()
            return

app, body = sys.argv[1:]
configure_mappers()
threading.Thread(target=answer, daemon=True).start()
sys.argv[:] = ["airflow", "dags", "test", app]
main()
"""


def released(app: str, env: dict[str, str], directory: Path) -> str:
    """Run the release, approve what a person is asked, as the interface does; gives what the person was shown."""
    command = [sys.executable, "-c", ANSWERING, f"{app}__release", str(directory / "asked")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Skipping registering" not in done.stdout + done.stderr
    return (directory / "asked").read_text()


def require_looks(project: ProjectConfig, unique: str) -> None:
    """What checks and waits see of the application when v2 is live."""
    found = sessions.judge_live(project, unique, "").verdict
    assert found.critical == ()
    assert found.outcomes[f"{unique}.sums: it has rows"] == "passed: 1"
    end = str(RunRange.parse(RunLog(project.kafka).runs(unique)[0].range).end)
    done = sessions.look(project, "processed", app=unique, version="v2", end=end)
    assert done == sessions.Look(f"{unique} v2 has 0 offsets left", is_over=True)
    assert sessions.look(project, "idle", app=unique).is_over
    watched = {"app": unique, "until_ms": 0, "max_lag": 0}
    assert sessions.look(project, "watched", version="v2", **watched).found == ""
    assert sessions.look(project, "watched", version="v1", **watched).found == "v1 is not live: the release is live"


def run_again(project: ProjectConfig, wish: sessions.Wish, kept: str | None) -> int:
    """Run what is done already or has no records; gives the number of records processed."""
    chosen = sessions.bounded(project, wish, kept)
    before = sessions.written_until(chosen.application)
    summary = sessions.run(chosen, lambda _done, _all: None)
    assert sessions.written_since(chosen.application, before) == {}
    return summary.processed


def no_spark(*_: object) -> None:
    raise AssertionError
