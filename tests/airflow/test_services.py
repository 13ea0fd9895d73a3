"""The DAGs in Airflow's real servers on PostgreSQL: schedules fire, and what is killed goes on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from pipeline import LONG
from pipeline.spark.planning.runs import RunLog
from tests.airflow.services import ROOT, running_services
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.airflow.services import Services
    from tests.brokers import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.broker, pytest.mark.spark]

SHOP = "shop"
PAYMENTS, FORGOTTEN = 200, 20
"""Payments of 5, and such of -2, which version 1 forgets."""
DAGS = f"""
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG
from airflow.sdk.definitions.callback import AsyncCallback
from millrace_airflow.dag_factory import dags
from millrace_airflow.notices import Notices
from millrace_airflow.waiting import ProcessedSensor

home = str(Path(__file__).parents[1])
late = AsyncCallback("alerts.late", {{"path": home + "/late"}})
patient = {{"retries": 3, "retry_delay": timedelta(seconds=1)}}
globals().update(dags(default_args=patient, notices=Notices(late=late, late_after=timedelta(seconds=1))))
with DAG("waiting", schedule=None) as waiting:
    ProcessedSensor(task_id="wait", app="{SHOP}", every_s=1)
"""
ALERTS = """
from pathlib import Path

async def late(path, **_context):
    Path(path).touch()
"""


@pytest.fixture(scope="module")
def services(
    broker: Broker, new_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    home = tmp_path_factory.mktemp("services")
    example = (ROOT / "tests" / "system" / "example_app.py").read_text()
    (home / f"{SHOP}.py").write_text(example.replace('"example"', f'"{SHOP}"'))
    broker.create(2, *(f"{SHOP}.{topic}" for topic in ("payments", "sums", "receipts")))
    pay(broker)
    (home / "streams.toml").write_text(
        f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{SHOP}]
topology = "{SHOP}:build"
schedule = "0 */6 * * *"
"""
    )
    (home / "alerts.py").write_text(ALERTS)
    (home / "dags").mkdir()
    (home / "dags" / "millrace_dags.py").write_text(DAGS)
    environ = {"MILLRACE_CONFIG": str(home / "streams.toml"), "PYTHONPATH": f"{home}:{ROOT}:{ROOT / 'plugins'}"}
    with running_services(home, new_port(), new_port(), environ) as found:
        found.until(lambda: found.ask("cy", "GET", "/api/v2/dags/waiting")[0] == 200)
        yield found


def pay(broker: Broker) -> None:
    amounts = [-2 if n < FORGOTTEN else 5 for n in range(PAYMENTS)]
    records = [(f"user{n % 7}/{n}".encode(), LONG.serialize(each), 1_000 + n) for n, each in enumerate(amounts)]
    broker.write(f"{SHOP}.payments", records)


def sums(broker: Broker) -> int:
    """The total of all rows that a table has."""
    return sum({r.key: LONG.deserialize(present(r.value)) for r in broker.read(f"{SHOP}.sums")}.values())


def receipts(broker: Broker) -> int:
    return len(broker.read(f"{SHOP}.receipts"))


def test_nothing_is_lost_or_doubled_whatever_is_killed(services: Services, broker: Broker) -> None:
    waiting = services.trigger("waiting")
    services.await_task("waiting", waiting, "wait", "deferred")
    dag = f"{SHOP}__run"
    services.unpause(dag)
    services.until(lambda: bool(services.runs(dag)))
    (scheduled,) = services.runs(dag)
    run = scheduled["dag_run_id"]
    assert scheduled["run_type"] == "scheduled"
    services.await_task(dag, run, "run", "running")
    services.kill("scheduler")
    services.kill("triggerer")
    services.start("scheduler")
    services.start("triggerer")
    services.until(lambda: bool(services.drivers()))
    for driver in services.drivers():
        os.kill(driver, signal.SIGKILL)
    assert services.await_run(dag, run) == "success"
    assert services.tasks(dag, run)["run"][1] > 1
    assert (sums(broker), receipts(broker)) == (5 * (PAYMENTS - FORGOTTEN), PAYMENTS)
    assert services.await_run("waiting", waiting) == "success"
    assert services.tasks("waiting", waiting)["wait"] == ("success", 1)
    services.until((services.directory / "late").exists)  # the deadline was missed, and its callback called


def test_a_backfill_of_what_is_processed_does_nothing(services: Services, broker: Broker) -> None:
    dag = f"{SHOP}__run"
    before = {run["dag_run_id"] for run in services.runs(dag)}
    known = {run.id for run in RunLog(broker.admin()).runs(SHOP)}
    days = {"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-01T06:00:00Z"}
    services.done("/backfills", "POST", {"dag_id": dag, **days})
    services.until(lambda: len(services.runs(dag)) > len(before))
    made = [run["dag_run_id"] for run in services.runs(dag) if run["dag_run_id"] not in before]
    assert {services.await_run(dag, run) for run in made} == {"success"}
    for run in made:
        assert "Nothing was processed: there are no new records" in services.log(dag, run, "run")
    assert {run.records_in for run in RunLog(broker.admin()).runs(SHOP) if run.id not in known} == {0}
    assert receipts(broker) == PAYMENTS
