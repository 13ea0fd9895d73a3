"""Arguments of tasks in scheduled runs, backfills and runs of people, as templates make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.test_waits import printed_by

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.airflow

PROJECT = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.clicks]
topology = "m:build"
schedule = "@daily"
[apps.days]
topology = "m:build"
schedule = "@daily"
schedule_timezone = "Europe/Berlin"
catchup_from = "2026-01-01"
"""
SCRIPT = f"""
import json, os
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from riverrun_airflow.dag_factory import dags
from riverrun_airflow.operators import BoundedRunOperator

Path(os.environ["RIVERRUN_CONFIG"]).write_text({PROJECT!r})
made = dags()
day = {{
    "data_interval_start": datetime(2026, 1, 2, tzinfo=timezone.utc),
    "data_interval_end": datetime(2026, 1, 3, tzinfo=timezone.utc),
}}

def tell(value):
    print("=" + json.dumps(value))

def given(dag_id, run_type, cleared=0, day=day, **params):
    dag = made[dag_id]
    task = dag.get_task("run")
    defaults = {{name: dag.params[name] for name in dag.params}}
    run = SimpleNamespace(run_type=run_type, clear_number=cleared)
    context = {{"params": {{**defaults, **params}}, "dag_run": run, **day}}
    return [task.render_template(getattr(task, name), context, dag.get_template_env()) for name in
            ("start", "end", "recompute_from")]

for app in "clicks", "days":
    run = app + "__run"
    tell([given(run, "scheduled"), given(run, "manual"), given(run, "backfill"), given(run, "backfill", 1)])
tell([given("clicks__run", "backfill", recompute="yes"), given("clicks__run", "backfill", 1, recompute="no"),
      given("clicks__run", "manual", 1), given("clicks__run", "scheduled", 1)])
tell([given("clicks__run", "manual", day=without, to="interval")[1] for without in ({{}}, {{"data_interval_end": None}}, day)])
tell([given(app + "__run", kind, day={{}})[1] for app in ("clicks", "days") for kind in ("manual", "asset_triggered")])
for bound in {{"start": "interval"}}, {{"end": "interval"}}:
    try:
        BoundedRunOperator(task_id="run", app="clicks", **bound).execute({{"task_state_store": {{}}, "run_id": "m"}})
    except AirflowFailException as error:
        tell(str(error))
some = {{"from": "2026-01-01", "to": "2026-01-02"}}
tell([given("clicks__backfill", "manual", **some), given("clicks__backfill", "manual", recompute=True, **some)])
restating = made["clicks__backfill"].get_task("run")
whole = {{**{{name: made["clicks__backfill"].params[name] for name in made["clicks__backfill"].params}}, "downstream": True,
         "without": "visits, export lake"}}
for name in "downstream", "without":
    templates = made["clicks__backfill"].get_template_env()
    setattr(restating, name, restating.render_template(getattr(restating, name), {{"params": whole}}, templates))
request = restating._request({{"run_id": "m"}}, "")
tell([request.downstream, request.without])
tell([[dag.catchup, dag.start_date.isoformat(), dag.max_active_runs] for dag in
      (made["clicks__run"], made["days__run"], made["days__backfill"])])
"""
START, END = "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"


def test_an_interval_is_computed_again_only_where_a_backfill_runs_it_again(tmp_path: Path) -> None:
    clicks, days, told, without, whole_runs, *refused, by_hand, restating, dags = printed_by(SCRIPT, tmp_path)
    assert without == ["interval", "interval", END]
    assert whole_runs == ["latest"] * 4
    assert len(refused) == 2
    for said in refused:
        assert "has no data interval, as it has no logical date" in said
        assert "Trigger the DAG with a logical date, or with to=latest" in said
    latest, whole, again = (["committed", end, since] for end, since in [("latest", ""), (END, ""), (END, START)])
    assert clicks == [latest, latest, whole, again]
    assert days == [whole, latest, whole, again], "each interval has a run of its own"
    assert told == [again, whole, latest, latest]
    assert by_hand == [["2026-01-01", "2026-01-02", ""], ["committed", "2026-01-02", "2026-01-01"]]
    assert restating == [True, ["visits", "export lake"]]
    assert dags == [
        [False, "2000-01-01T00:00:00+00:00", 1],
        [True, "2025-12-31T23:00:00+00:00", 1],
        [False, "2000-01-01T00:00:00+00:00", 1],
    ]


NIGHTS = """
import json
import os
import random
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo
import pendulum
from airflow.serialization.decoders import decode_timetable
from airflow.serialization.encoders import encode_timetable
from airflow.timetables import interval
from airflow.timetables.base import TimeRestriction
from riverrun.spark.ranges import time_ms
from riverrun_airflow.dag_factory import dags

CRONS = ["@daily", "@hourly", "30 2 * * *", "*/30 1,2 * * *", "*/20 0-3 * * *", "5 */2 * * *", "0 3 * * 0", "10,50 * * * *"]
YEARS = {"Europe/Berlin": 2025, "America/Santiago": 2025, "Africa/Cairo": 2025, "Asia/Kolkata": 2025, "Europe/Dublin": 2025,
         "Australia/Lord_Howe": 2025, "Africa/Casablanca": 2025, "Antarctica/Troll": 2025, "America/St_Johns": 2010,
         "Pacific/Apia": 2011, "America/Sao_Paulo": 2018, "Asia/Kathmandu": 1985, "Pacific/Kwajalein": 1993}
APP = '[apps.a{}]\\ntopology = "m:build"\\nschedule = "{}"\\nschedule_timezone = "{}"\\ncatchup_from = "1985-01-01"\\n'
kinds = list(product(YEARS, CRONS))
project = '[kafka]\\n"bootstrap.servers" = "127.0.0.1:1"\\n'
project += "".join(APP.format(number, cron, zone) for number, (zone, cron) in enumerate(kinds))
Path(os.environ["RIVERRUN_CONFIG"]).write_text(project)
made, wrong, number = dags(), [], 0
for app, (zone, cron) in enumerate(kinds):
    hours = [datetime(YEARS[zone], 1, 1, tzinfo=UTC) + timedelta(hours=each) for each in range(366 * 24)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    nights = [hour for hour, before, after in zip(hours[1:], offsets, offsets[1:]) if before != after] or hours[88:89]
    dag = made[f"a{app}__run"]
    task, times, templates = dag.get_task("run"), decode_timetable(encode_timetable(dag.timetable)), dag.get_template_env()
    params = {name: dag.params[name] for name in dag.params}
    if [times.expression, times.timezone.name] != [{"@daily": "0 0 * * *", "@hourly": "0 * * * *"}.get(cron, cron), zone]:
        wrong.append([zone, cron, "attributes", times.expression, times.timezone.name])

    def given(found, run_type, cleared):
        context = {"params": params, "dag_run": SimpleNamespace(run_type=run_type, clear_number=cleared)}
        context |= {"data_interval_start": found.start, "data_interval_end": found.end}
        return [task.render_template(each, context, templates) for each in (task.start, task.end, task.recompute_from)]

    for night in nights:
        chance = random.Random(f"{zone}{cron}{night}")
        start = pendulum.instance(night - timedelta(hours=chance.randint(3, 30), minutes=chance.randint(0, 59)))
        restriction = TimeRestriction(earliest=start, latest=None, catchup=True)
        found, last, until = [], None, night + timedelta(days=16 if cron.endswith("0") else 1.2)
        while last is None or last.end <= until:
            last = times.next_dagrun_info(last_automated_data_interval=last, restriction=restriction).data_interval
            found.append(last)
        number += len(found)
        # A run processes up to the end of its interval. One that computes again begins with its interval.
        for before, each in zip(found, found[1:]):
            if not before.start < before.end == each.start < each.end:
                wrong.append([zone, cron, "next to each other", str(before), str(each)])
        for each in chance.sample(found, min(3, len(found))):
            run, again = given(each, "scheduled", 0), given(each, "backfill", 1)
            if [run[0], time_ms(run[1]), run[2]] != ["committed", each.end.timestamp() * 1000, ""]:
                wrong.append([zone, cron, "run", str(each), run])
            if [time_ms(again[2]), time_ms(again[1])] != [each.start.timestamp() * 1000, each.end.timestamp() * 1000]:
                wrong.append([zone, cron, "again", str(each), again])
            # Triggered by hand, and without catching up, a run has the last interval that has ended.
            for at in each.end, each.end + (last.end - each.end) / 1000:
                ended = next(one for one in reversed(found) if one.end <= at)
                interval.utcnow = lambda: at
                latest = TimeRestriction(earliest=pendulum.datetime(1970, 1, 1), latest=None, catchup=False)
                newest = times.next_dagrun_info(last_automated_data_interval=None, restriction=latest).data_interval
                if times.infer_manual_data_interval(run_after=at) != ended or newest != ended:
                    wrong.append([zone, cron, "at", str(at), str(ended), str(newest)])
print("=" + json.dumps([wrong[:9], number > 1000]))
"""


def test_intervals_adjoin_and_each_has_one_run_when_clocks_change(tmp_path: Path) -> None:
    assert printed_by(NIGHTS, tmp_path) == [[[], True]]
