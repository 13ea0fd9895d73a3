"""The DAGs in Airflow's real servers on PostgreSQL, one test after the other: what is killed goes on, users see their part."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from riverrun import LONG, STRING, Window, Windowed, windowed
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.release import ReleaseStep
from riverrun.partitioning import partition_for
from riverrun.records import TopicPartition
from riverrun.spark.runs import RunLog
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
from airflow.providers.standard.operators.python import PythonOperator
from riverrun_airflow.arrivals import watched
from riverrun_airflow.dag_factory import dags
from riverrun_airflow.notices import Notices
from riverrun_airflow.operators import BoundedRunOperator, QualityOperator
from riverrun_airflow.task_group import RiverrunTaskGroup
from riverrun_airflow.waiting import NewRecordsSensor, ProcessedSensor

home = str(Path(__file__).parents[1])
late = AsyncCallback("alerts.late", {{"path": home + "/late"}})
patient = {{"retries": 3, "retry_delay": timedelta(seconds=1)}}
globals().update(dags(default_args=patient, notices=Notices(late=late, late_after=timedelta(seconds=1))))
for step in ("reprocess", "gate", "cut"):
    {SHOP}__release.get_task(step).apart = True
with DAG("waiting", schedule=None) as waiting:
    ProcessedSensor(task_id="wait", app="{SHOP}", poke_interval=1)
    NewRecordsSensor(task_id="late", topics=["{SHOP}.receipts"], records=1_000_000, timeout=1, soft_fail=True)
    NewRecordsSensor(task_id="written", topics=["{SHOP}.receipts"], records={PAYMENTS}, start="earliest", poke_interval=1)
payments = watched("{SHOP}.payments", records={PAYMENTS}, start="earliest", every_s=1)

def note(triggering_asset_events):
    with Path(home, "arrived").open("a") as file:
        for event in triggering_asset_events[payments]:
            print(event.extra["payload"]["offsets"], event.extra["payload"]["reason"], file=file)

with DAG("following", schedule=[payments]) as following:
    PythonOperator(task_id="note", python_callable=note)
with DAG("own", schedule=None, default_args=patient) as own:
    RiverrunTaskGroup("{SHOP}", ["run", "judge"], operator_args={{"run": {{"skip_if_empty": True}}}})
with DAG("wrong", schedule=None, default_args={{**patient, "retries": 1}}) as wrong:
    BoundedRunOperator(task_id="connection", app="{SHOP}", riverrun_conn_id="gone")
    QualityOperator(task_id="checked_connection", app="{SHOP}", riverrun_conn_id="gone")
    BoundedRunOperator(task_id="app", app="shpo")
    BoundedRunOperator(task_id="version", app="{SHOP}", version="v9")
    BoundedRunOperator(task_id="range", app="{SHOP}", start="yesterday")
    QualityOperator(task_id="suite", app="unread")
    BoundedRunOperator(task_id="brokers", app="{SHOP}", config=home + "/down.toml")
"""
HELD = """

_expectations = expectations


def expectations() -> dict[str, Expectations]:
    import time
    from pathlib import Path

    while Path(__file__).with_name("held").exists():
        time.sleep(0.1)
    return _expectations()
"""
TILL = """
from riverrun import LONG, STRING, Consumed, Produced

def build(builder):
    builder.stream("till.payments", Consumed(STRING, LONG)).to("till.receipts", Produced(STRING, LONG))
    return builder.build()

def expectations():
    from great_expectations.expectations import ExpectColumnValuesToBeBetween as Between

    limits = {"critical": 1000, "warning": 500}
    return {"till.receipts": [Between(column="value", max_value=most, severity=each) for each, most in limits.items()]}
"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS = """
from datetime import timedelta

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, TimeWindows, windowed

HOUR = timedelta(hours=1)

def build(builder):
    paid = builder.stream("hours.payments", Consumed(STRING, LONG))
    paid.to("hours.receipts", Produced(STRING, LONG))
    hours = paid.group_by_key(Grouped(STRING, LONG)).windowed_by(TimeWindows.of_size_with_no_grace(HOUR))
    sums = hours.reduce(lambda a, b: a + b, Materialized(name="sums"))
    sums.to_stream().to("hours.sums", Produced(windowed(STRING, HOUR), LONG))
    return builder.build()
"""
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
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
    (home / f"{SHOP}.py").write_text(example.replace('"example"', f'"{SHOP}"') + HELD)
    (home / "till.py").write_text(TILL)
    (home / "hours.py").write_text(HOURS)
    broker.create(2, *(f"{SHOP}.{topic}" for topic in ("payments", "sums", "receipts")))
    broker.create(2, "till.payments", "till.receipts", "hours.payments", "hours.receipts", "hours.sums")
    pay(broker)
    project = f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{SHOP}]
topology = "{SHOP}:build"
schedule = "0 */6 * * *"
quality = "{SHOP}:expectations"
[apps.{SHOP}.config]
"bounded.engine" = "spark"
[apps.{SHOP}.versions]
v2 = "{SHOP}:build_v2"
v4 = "{SHOP}:build_in_thousandths"
[apps.till]
topology = "till:build"
quality = "till:expectations"
gate = true
[apps.hours]
topology = "hours:build"
schedule = "@daily"
catchup_from = "{TODAY - 3 * DAY:%Y-%m-%d}"
[apps.unread]
topology = "{SHOP}:build"
quality = "suites/unread.json"
[apps.never]
topology = "{SHOP}:build"
schedule = "every day"
"""
    (home / "streams.toml").write_text(project)
    (home / "down.toml").write_text(project.replace(broker.bootstrap_servers, "127.0.0.1:1"))
    second = f"[apps.{SHOP}]"
    (home / "second.toml").write_text(f"{project.partition(second)[0]}[apps.second]\ntopology = 'till:build'\n")
    (home / "suites").mkdir()
    (home / "suites" / "unread.json").write_text("{")
    (home / "alerts.py").write_text(ALERTS)
    (home / "dags").mkdir()
    (home / "dags" / "riverrun_dags.py").write_text(DAGS)
    (home / "dags" / "declarations.py").write_text((ROOT / "dags" / "declarations.py").read_text())
    environ = {"RIVERRUN_CONFIG": str(home / "streams.toml"), "PYTHONPATH": f"{home}:{ROOT}:{ROOT / 'plugins'}"}
    with running_services(home, new_port(), new_port(), environ) as found:
        found.until(lambda: found.ask("cy", "GET", "/api/v2/dags/wrong")[0] == 200, "DAGs are known")
        yield found


def pay(broker: Broker) -> None:
    amounts = [-2 if n < FORGOTTEN else 5 for n in range(PAYMENTS)]
    records = [(f"user{n % 7}/{n}".encode(), LONG.serialize(each), 1_000 + n) for n, each in enumerate(amounts)]
    broker.write(f"{SHOP}.payments", records)


def in_ms(time: datetime | timedelta) -> int:
    """A time since the epoch, or a duration, in ms."""
    since = time - datetime(1970, 1, 1, tzinfo=UTC) if isinstance(time, datetime) else time
    return since // timedelta(milliseconds=1)


def sums(broker: Broker) -> int:
    """The total of all rows that a table has."""
    return sum({r.key: LONG.deserialize(present(r.value)) for r in broker.read(f"{SHOP}.sums")}.values())


def receipts(broker: Broker) -> int:
    return len(broker.read(f"{SHOP}.receipts"))


def test_nothing_is_lost_or_doubled_whatever_is_killed(services: Services, broker: Broker) -> None:
    services.unpause("following")
    waiting = services.trigger("waiting")
    services.await_task("waiting", waiting, "wait", "deferred")
    services.await_task("waiting", waiting, "late", "skipped")  # a killed server would make it try again
    dag = f"{SHOP}__run"
    services.unpause(dag)
    services.until(lambda: bool(services.runs(dag)), "the schedule fires")
    (scheduled,) = services.runs(dag)
    run = scheduled["dag_run_id"]
    assert scheduled["run_type"] == "scheduled"
    services.await_task(dag, run, "run", "running")
    services.kill("scheduler")
    services.kill("triggerer")
    services.start("scheduler")
    services.start("triggerer")
    services.kill_spark()
    assert services.await_run(dag, run) == "success"
    attempts = services.tasks(dag, run)["run"][1]
    assert attempts > 1
    logs = [services.log(dag, run, "run", attempt) for attempt in range(1, attempts + 1)]
    said = "Spark has ended", "the system may have killed it for want of memory"  # the latter if Java was starting
    assert any(each in log for log in logs for each in said), logs
    assert not any("py4j" in log for log in logs), logs
    assert (sums(broker), receipts(broker)) == (5 * (PAYMENTS - FORGOTTEN), PAYMENTS)
    assert services.await_run("waiting", waiting) == "success"
    assert services.tasks("waiting", waiting) == {
        "wait": ("success", 1),
        "late": ("skipped", 1),
        "written": ("success", 1),
    }
    services.until((services.directory / "arrived").exists, "the DAG that follows the payments runs")
    services.until((services.directory / "late").exists, "the deadline is missed, and its callback called")


def test_a_backfill_of_what_is_processed_does_nothing(services: Services, broker: Broker) -> None:
    dag = f"{SHOP}__run"
    before = {run["dag_run_id"] for run in services.runs(dag)}
    known = {run.id for run in RunLog(broker.admin()).runs(SHOP)}
    days = {"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-01T06:00:00Z"}
    services.done("/backfills", "POST", {"dag_id": dag, **days})
    services.until(lambda: len(services.runs(dag)) > len(before), "the backfill begins")
    new_runs = [run["dag_run_id"] for run in services.runs(dag) if run["dag_run_id"] not in before]
    assert {services.await_run(dag, run) for run in new_runs} == {"success"}
    for run in new_runs:
        assert "Nothing was processed: there are no new records" in services.log(dag, run, "run")
    assert {run.records_in for run in RunLog(broker.admin()).runs(SHOP) if run.id not in known} == {0}
    assert receipts(broker) == PAYMENTS


def test_a_task_group_judges_what_no_check_has_judged_and_then_skips(services: Services) -> None:
    """Earlier runs have published; a run without records does not hide that nobody has judged this."""
    own = services.trigger("own")
    assert services.await_run("own", own) == "success"
    assert services.tasks("own", own) == {f"{SHOP}.run": ("skipped", 1), f"{SHOP}.judge": ("success", 1)}
    own = services.trigger("own")
    assert services.await_run("own", own) == "success"
    assert services.tasks("own", own) == {f"{SHOP}.run": ("skipped", 1), f"{SHOP}.judge": ("skipped", 1)}
    path = f"/dags/own/dagRuns/{own}/taskInstances/{SHOP}.run/xcomEntries/return_value"
    result = services.done(path)["value"]
    assert (result["app"], result["empty"], result["records_in"]) == (SHOP, True, 0), result


def test_a_release_waits_for_approval_and_goes_on_whatever_is_killed(services: Services, broker: Broker) -> None:
    dag, registry = f"{SHOP}__release", ReleaseRegistry.at(broker.admin())
    held = services.directory / "held"
    held.touch()
    run = services.trigger(dag, version="v2", then="retire")
    services.await_task(dag, run, "reprocess", "deferred")
    services.kill_spark()
    clear_the_gate_and_kill_servers(services, dag, run)
    held.unlink()
    services.await_task(dag, run, "approve", "awaiting_input")
    for server in ("scheduler", "triggerer"):
        services.kill(server)
        services.start(server)
    verdict = registry.read(SHOP, "v1").verdict
    assert verdict is not None
    question = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    answer = {"chosen_options": ["Approve"]}
    assert f"Verdict `{verdict.id}`" in services.ask("ann", "GET", question)[1]["body"]
    assert [services.ask(user, "PATCH", question, answer)[0] for user in ("", "ann", "bob")] == [401, 403, 200]
    services.until(
        lambda: registry.read(SHOP, "v1").step in {ReleaseStep.CUTTING, ReleaseStep.LIVE}, "the cut has begun"
    )
    services.kill_task(dag, run, "cut")
    assert services.await_run(dag, run) == "success"
    tries = {task: tries for task, (_, tries) in services.tasks(dag, run).items()}
    assert tries["reprocess"] > 1
    assert tries["gate"] > 1
    settled = registry.read(SHOP, "v1")
    assert settled.verdict is not None
    assert (settled.live, settled.previous, settled.verdict.id) == ("v2", None, verdict.id)
    assert settled.verdict.approved_by.startswith("airflow:bob ")
    assert sums(broker) == 5 * (PAYMENTS - FORGOTTEN) - 2 * FORGOTTEN
    assert receipts(broker) == PAYMENTS
    services.clear(dag, run, "retire")
    services.await_task(dag, run, "retire", "success")
    assert services.tasks(dag, run)["retire"][1] > tries["retire"]


def clear_the_gate_and_kill_servers(services: Services, dag: str, run: str) -> None:
    """The gate's driver ends when its task is cleared; the next one outlives the servers."""
    services.await_task(dag, run, "gate", "deferred")
    services.until(lambda: ": running" in services.log(dag, run, "gate"), "the triggerer waits for the gate's driver")
    cleared = services.drivers()
    services.clear(dag, run, "gate")
    services.until(lambda: not {*cleared} & {*services.drivers()}, "the driver of the cleared task ends")
    services.until(lambda: bool(services.drivers()), "another driver judges")
    judging = services.drivers()
    for server in ("scheduler", "triggerer"):
        services.kill(server)
        services.start(server)
    assert services.drivers() == judging


def test_outputs_that_a_gate_holds_back_are_published_or_discarded(services: Services, broker: Broker) -> None:
    dag, decides, registry = "till__backfill", "till__held", ReleaseRegistry.at(broker.admin())

    def pay_in(*amounts: int) -> None:
        broker.write("till.payments", [(b"ann", LONG.serialize(amount), 1_000 + amount) for amount in amounts])

    def fails() -> str:
        run = services.trigger(dag)
        assert services.await_run(dag, run) == "failed"
        assert services.tasks(dag, run)["run"] == ("failed", 1), "is not tried again"
        return services.log(dag, run, "run")

    pay_in(5, 600)
    assert "trigger till__held with action=publish, approve=" in fails()
    assert "held back: its gate has warnings without an approval" in fails()
    assert broker.read("till.receipts") == []
    held = registry.read("till", "v1").held
    assert held is not None
    assert held.verdict is not None
    run = services.trigger(decides, approve=held.verdict.id)
    assert services.await_run(decides, run) == "success"
    result = services.done(f"/dags/{decides}/dagRuns/{run}/taskInstances/decide/xcomEntries/return_value")["value"]
    assert (result["action"], result["records"], len(broker.read("till.receipts"))) == ("publish", 2, 2)
    pay_in(2_000)
    assert "trigger till__held with action=discard" in fails()
    run = services.trigger(decides, action="discard")
    assert services.await_run(decides, run) == "success"
    assert (registry.read("till", "v1").held, len(broker.read("till.receipts"))) == (None, 2)


def test_a_paused_dag_catches_up_once_beside_runs_of_people(services: Services, broker: Broker) -> None:
    dag, by_hand = "hours__run", "hours__backfill"
    broker.write("hours.payments", [(user, LONG.serialize(amount), at) for user, amount, at in paid_by_the_hour()])

    def intervals() -> list[str]:
        return [run["state"] for run in services.runs(dag) if run["run_type"] == "scheduled"]

    services.unpause(dag)
    services.until(lambda: bool(intervals()), "the first interval has a run")
    services.pause(dag)
    half = services.trigger(by_hand, to=(TODAY - DAY - 12 * HOUR).isoformat())
    assert services.await_run(by_hand, half) == "success"
    services.unpause(dag)
    services.until(lambda: intervals().count("success") >= 2, "intervals are processed")
    rest = [(by_hand, services.trigger(by_hand)), (dag, services.trigger(dag))]
    assert [services.await_run(*run) for run in rest] == ["success"] * 2
    services.until(lambda: intervals().count("success") >= 3, "all intervals are processed")
    assert {*intervals()} == {"success"}
    starts = sorted(run["data_interval_start"] for run in services.runs(dag) if run["run_type"] == "scheduled")
    found = [datetime.fromisoformat(start) for start in starts]
    assert found == [found[0] + number * DAY for number in range(len(found))], "each has one run"
    assert found[0] == TODAY - 3 * DAY
    require_hours(broker)
    done = RunLog(broker.admin()).runs("hours")
    assert sum(run.records_in for run in done) == len(paid_by_the_hour())


def test_a_backfill_of_airflow_computes_processed_intervals_again(services: Services, broker: Broker) -> None:
    dag, at = "hours__run", TODAY - 2 * DAY + 9 * HOUR
    wrong = windowed(STRING, HOUR).serialize(Windowed("ann", Window(in_ms(at), in_ms(at + HOUR))))
    broker.write("hours.sums", [(wrong, LONG.serialize(999), in_ms(at))], partition_for(b"ann", 2))
    days = {"from_date": (TODAY - 3 * DAY).isoformat(), "to_date": (TODAY - 2 * DAY).isoformat()}
    services.done("/backfills", "POST", {"dag_id": dag, **days, "reprocess_behavior": "completed"})

    def again() -> list[str]:
        return [run["dag_run_id"] for run in services.runs(dag) if run["run_type"] == "backfill"]

    services.until(lambda: len(again()) == 2, "the backfill begins")
    assert {services.await_run(dag, run) for run in again()} == {"success"}
    path = f"/dags/{dag}/dagRuns/{{}}/taskInstances/run/xcomEntries/return_value"
    corrections = [services.done(path.format(run))["value"]["corrections"] for run in again()]
    assert sorted(corrections) == [0, 1]
    require_hours(broker)


def paid_by_the_hour() -> list[tuple[bytes, int, int]]:
    """Payments on three days that are over, and on one that is not: user, amount, and time in ms."""
    hours = [TODAY + day * DAY + hour * HOUR for day in (-3, -2, -1) for hour in (0, 9, 23)]
    return [
        (user, number, in_ms(hour) + number)
        for hour in (*hours, TODAY)
        for number, user in enumerate((b"ann", b"bob", b"ann"), hour.day)
    ]


def require_hours(broker: Broker) -> None:
    """The outputs of `hours` are those of a plain model: each payment, and sums by user and hour."""
    paid, keys = paid_by_the_hour(), windowed(STRING, HOUR)
    receipts = [(record.key, record.value) for record in broker.read("hours.receipts")]
    assert sorted(receipts) == sorted((user, LONG.serialize(amount)) for user, amount, _ in paid)
    expected: Counter[bytes] = Counter()
    for user, amount, at in paid:
        start = at - at % in_ms(HOUR)
        expected[keys.serialize(Windowed(user.decode(), Window(start, start + in_ms(HOUR))))] += amount
    assert {r.key: LONG.deserialize(present(r.value)) for r in broker.read("hours.sums")} == expected


def test_a_failed_gate_blocks_the_release_and_is_not_tried_again(services: Services, broker: Broker) -> None:
    dag = f"{SHOP}__release"
    blocked = services.trigger(dag, version="v4")
    assert services.await_run(dag, blocked) == "failed"
    tasks = services.tasks(dag, blocked)
    assert tasks["gate"] == ("failed", 1)
    assert {tasks[task][0] for task in ("verdict", "approve", "cut", "retire")} == {"upstream_failed"}
    assert "expect_column_values_to_be_between" in services.log(dag, blocked, "gate")
    assert ReleaseRegistry.at(broker.admin()).read(SHOP, "v1").live == "v2"


def test_users_see_and_do_what_airflow_lets_them(services: Services) -> None:
    page, dag = f"/riverrun/apps/{SHOP}", f"{SHOP}__backfill"
    pages = [[services.ask(user, "GET", path) for path in ("/riverrun/", page)] for user in ("", "ann", "bob")]
    assert [[code for code, _ in seen] for seen in pages] == [[401, 401], [200, 200], [200, 200]]
    viewed, operated = pages[1][1][1], pages[2][1][1]
    assert "You may look at this application, not act on it." in viewed
    assert "<form" not in viewed
    assert f'<form data-dag="{dag}"' in operated
    scheduled = [run["dag_run_id"] for run in services.runs(f"{SHOP}__run") if run["run_type"] == "scheduled"]
    # Its schedule may begin another one while the tests run.
    assert any(f'href="/dags/{SHOP}__run/runs/{quote(run)}/tasks/run"' in viewed for run in scheduled)
    assert "A later run has continued from its last commit." in viewed, "of attempts that were killed"
    assert services.ask("ann", "GET", "/riverrun/apps/second")[0] == 404
    extra = json.dumps({"project": str(services.directory / "second.toml")})
    services.done("/connections", "POST", {"connection_id": "second", "conn_type": "riverrun", "extra": extra})
    assert services.ask("ann", "GET", "/riverrun/apps/second")[0] == 200
    run = {"logical_date": None, "conf": {"dry_run": True}}
    runs = f"/api/v2/dags/{dag}/dagRuns"
    assert [services.ask(user, "GET", runs)[0] for user in ("", "ann", "bob")] == [401, 200, 200]
    assert [services.ask(user, "POST", runs, run)[0] for user in ("", "ann", "bob")] == [401, 403, 200]


def test_bad_input_is_reported_where_users_look(services: Services) -> None:
    runs = f"/api/v2/dags/{SHOP}__backfill/dagRuns"
    code, refused = services.ask("bob", "POST", runs, {"logical_date": None, "conf": {"version": "v9"}})
    assert (code, "'v9' is not one of" in str(refused)) == (400, True), refused
    lost = "from riverrun_airflow.dag_factory import dags  # airflow dag\ndags(riverrun_conn_id='gone')\n"
    (services.directory / "dags" / "lost.py").write_text(lost)
    run = services.trigger("wrong")
    assert services.await_run("wrong", run) == "failed"
    messages = {
        "connection": "Airflow has no connection 'gone'",
        "checked_connection": "Airflow has no connection 'gone'",
        "app": "has no application 'shpo'",
        "version": "has no version 'v9'",
        "range": "'yesterday' is neither committed, earliest",
        "suite": "suites/unread.json cannot be read",
        "brokers": "127.0.0.1:1",
    }
    tasks = services.tasks("wrong", run)
    assert tasks == {task: ("failed", 2 if task == "brokers" else 1) for task in messages}
    for task, said in messages.items():
        shown = services.log("wrong", run, task)
        assert said in shown, shown
    services.until(lambda: "Airflow has no connection 'gone'" in services.import_errors(), "the file's error is shown")
    assert "apps.never.schedule is 'every day'" in services.import_errors()
    assert not services.done(f"/dags/{SHOP}__run")["has_import_errors"]


def test_watched_records_were_reported_once_though_triggerers_were_killed(services: Services, broker: Broker) -> None:
    ends = broker.admin().end_offsets(TopicPartition(f"{SHOP}.payments", number) for number in range(2))
    offsets = ",".join(f"{tp}@0..{end}" for tp, end in sorted(ends.items()))
    assert (services.directory / "arrived").read_text() == f"{offsets} records\n"
