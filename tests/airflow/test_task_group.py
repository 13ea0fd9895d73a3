"""Task groups for DAGs of one's own, and the choice of applications and arguments in the project's DAGs."""

from __future__ import annotations

from itertools import pairwise
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
schedule = "0 6 * * *"
schedule_timezone = "Europe/Berlin"
quality = "m:expectations"
[apps.clicks.versions]
v2 = "m:build"
[apps.shop-eu]
topology = "m:build"
[apps."shop.us"]
topology = "m:build"
[apps.bad]
topology = "m:build"
schedule = "every day"
"""
SCRIPT = f"""
import json, os
from pathlib import Path
from airflow.sdk import DAG, task_group
from riverrun.errors import ConfigError
from riverrun_airflow.dag_factory import applications, dags
from riverrun_airflow.operators import BoundedRunOperator
from riverrun_airflow.task_group import RiverrunTaskGroup

Path(os.environ["RIVERRUN_CONFIG"]).write_text({PROJECT!r})

def tell(value):
    print("=" + json.dumps(value))

def edges(dag):
    return {{task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}}

def refused(action):
    try:
        action()
    except ConfigError as error:
        tell(str(error))

# A group has the tasks of the project's DAGs, with their pools, in a DAG of another author.
args = {{"gate": {{"retries": 7, "pool": "large"}}, "run": {{"start": "earliest", "max_records_per_slice": 500}}}}
with DAG("own", schedule=None) as own:
    steps = ["run", "judge", "plan", "start", "reprocess", "await", "gate", "verdict", "approve", "cut", "watch"]
    group = RiverrunTaskGroup("clicks", steps, version="v2", operator_args=args, default_args={{"retries": 3}})
tell(edges(own))
shown = {{task.label: [task.retries, task.pool] for task in own.tasks}}
tell([shown["run"], shown["gate"], shown["judge"], shown["await"]])
run, plan, cut = (own.get_task(f"clicks.{{step}}") for step in ("run", "plan", "cut"))
tell([run.start, run.max_records_per_slice, run.outlets[0].name, plan.to, cut.trigger_rule])
verdict, approve = own.get_task("clicks.verdict"), own.get_task("clicks.approve")
tell([verdict.asking, verdict.clean, verdict.verdict, approve.verdict])

# A chain without a branch always asks for approval of warnings; the group's name fits Airflow.
with DAG("plain", schedule=None) as plain:
    RiverrunTaskGroup("shop.us", ["gate", "approve", "cut"])
tell(edges(plain))

# A group is mapped over applications with a mapped group around it.
@task_group
def each(app):
    RiverrunTaskGroup(app, ["run", "judge"])

with DAG("mapped", schedule=None) as mapped:
    each.expand(app=applications(exclude="shop*"))
    BoundedRunOperator.partial(task_id="run").expand(app=applications(select=["shop*"]))
tell([edges(mapped), {{task.task_id: task.pool for task in mapped.tasks}}])

# The release of a project is made of such groups; its answers lead where they did.
made = dags(select=["clicks", "bad"], operator_args={{"run": {{"pool": "large"}}, "clicks.gate": {{"retries": 0}}}})
release = made["clicks__release"]
tell([*sorted(made)])
tell(edges(release))
settle, watch = release.get_task("settle"), release.get_task("watch")
tell([settle.options_mapping, settle.found, settle.then, watch.version, watch.minutes])
tell([[made[f"clicks__{{kind}}"].get_task("run").pool for kind in ("run", "backfill")], release.get_task("gate").retries])
tell(made["clicks__run"].timetable.serialize()["timezone"])
tell(sorted(dags(exclude=["*bad", "clicks"])))

with DAG("wrong", schedule=None):
    for steps in ["rnu"], ["run", "run"], ["verdict", "cut"], ["settle", "keep"]:
        refused(lambda: RiverrunTaskGroup("clicks", steps, group_id=steps[0]))
    refused(lambda: RiverrunTaskGroup("clicks", operator_args={{"gat": {{}}}}, group_id="args"))
refused(lambda: dags(select="clicsk"))
refused(lambda: dags(operator_args={{"clicks.gat": {{}}}}))
"""


def test_groups_have_the_tasks_of_the_projects_dags_in_dags_of_ones_own(tmp_path: Path) -> None:
    own, arguments, given, branch, plain, mapped, names, release, answers, chosen, zone, others, *wrong = printed_by(
        SCRIPT, tmp_path
    )
    chain = ("run", "judge", "plan", "start", "reprocess", "await", "gate", "verdict")
    expected = {f"clicks.{one}": [f"clicks.{after}"] for one, after in pairwise(chain)}
    assert own == expected | {
        "clicks.verdict": ["clicks.approve", "clicks.cut"],
        "clicks.approve": ["clicks.cut"],
        "clicks.cut": ["clicks.watch"],
        "clicks.watch": [],
    }
    assert arguments == [[3, "riverrun_clicks"], [7, "large"], [3, "default_pool"], [3, "default_pool"]]
    assert given == ["earliest", 500, "riverrun:clicks", "v2", "none_failed_min_one_success"]
    verdict = "{{ ti.xcom_pull(task_ids='clicks.gate')['verdict'] }}"
    assert branch == ["clicks.approve", "clicks.cut", verdict, verdict]
    assert plain == {"shop_us.gate": ["shop_us.approve"], "shop_us.approve": ["shop_us.cut"], "shop_us.cut": []}
    assert mapped == [
        {"each.riverrun.run": ["each.riverrun.judge"], "each.riverrun.judge": [], "run": []},
        {"each.riverrun.run": "default_pool", "each.riverrun.judge": "default_pool", "run": "default_pool"},
    ]
    assert names == ["bad__error", *(f"clicks__{kind}" for kind in ("backfill", "quality", "release", "run"))]
    assert release == {
        "plan": ["start"],
        "start": ["reprocess"],
        "reprocess": ["await"],
        "await": ["gate"],
        "gate": ["verdict"],
        "verdict": ["approve", "cut"],
        "approve": ["cut"],
        "cut": ["watch"],
        "watch": ["settle"],
        "settle": ["keep", "retire", "rollback"],
        "keep": [],
        "retire": [],
        "rollback": [],
    }
    answered = {"Retire the previous version": "retire", "Roll back": "rollback", "Keep both": "keep"}
    found = "{{ ti.xcom_pull(task_ids='watch') or '' }}"
    assert answers == [
        answered,
        found,
        "{{ params['then'] }}",
        "{{ params['version'] }}",
        "{{ params['watch_minutes'] }}",
    ]
    assert chosen == [["large", "large"], 0]
    assert zone == "Europe/Berlin"
    assert others == [f"{app}__{kind}" for app in ("shop-eu", "shop.us") for kind in ("backfill", "release")]
    assert [message.partition("\n")[0] for message in wrong] == [
        "'rnu' is not a step of an application",
        "The steps run, run name a step twice",
        "The step verdict is followed by approve and a further step",
        "The step settle is followed by retire, rollback, keep",
        "operator_args has 'gat', which is not a step",
        "The project has no application 'clicsk'",
        "operator_args has 'clicks.gat', which is not a step",
    ]


DECORATED = """
import json
from types import SimpleNamespace
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from riverrun_airflow import operators

class Kept(dict):
    set = dict.__setitem__

def tell(value):
    print("=" + json.dumps(value))

calls = []

class Ended(Exception):
    pass

def bounded(project, request):
    tell([request.app, request.start, request.end, request.version, request.options.max_records_per_slice])
    raise Ended

operators.bounded = bounded

with DAG("own", schedule=None) as own:
    @task.riverrun_run(app="clicks", version="v2", max_records_per_slice=500)
    def day(hour, ds=None) -> dict:
        calls.append(ds)
        return {"end": f"{ds}T{hour}:00", "start": "{{ params.begin }}", "gate": True}

    @task.riverrun_run(app="clicks")
    def wrong():
        return {"finish": "latest"}

    day("06")
    wrong()

tell([own.get_task("day").task_type, own.get_task("day").outlets[0].name])
store = Kept()
context = {"run_id": "m", "ds": "2026-01-02", "params": {"begin": "earliest"}, "task_state_store": store, "ti": None}
for _ in range(2):
    try:
        own.get_task("day").execute(dict(context))
    except Ended:
        pass
tell([calls, own.get_task("day").gate, store["arguments"]["start"]])
try:
    own.get_task("wrong").execute({**context, "task_state_store": Kept()})
except AirflowFailException as error:
    tell(str(error).partition(chr(10))[0])
"""


def test_a_decorated_function_gives_its_run_arguments_once(tmp_path: Path) -> None:
    assert printed_by(DECORATED, tmp_path) == [
        ["DecoratedRunOperator", "riverrun:clicks"],
        ["clicks", "earliest", "2026-01-02T06:00", "v2", 500],
        ["clicks", "earliest", "2026-01-02T06:00", "v2", 500],
        [["2026-01-02"], True, "{{ params.begin }}"],
        "The function of @task.riverrun_run returned finish",
    ]


NOTICES = f"""
import json, os
from pathlib import Path
from riverrun_airflow.dag_factory import dags
from riverrun_airflow.notices import Notices

PROJECT = {PROJECT!r}.replace('quality = "m:expectations"', 'quality = "m:expectations"\\ngate = true')
PROJECT += '[archives.all]\\ntopics = ["clicks"]\\nurl = "/srv/archive"\\n'
Path(os.environ["RIVERRUN_CONFIG"]).write_text(PROJECT)

def told(context):
    pass

def own(context):
    pass

for notices in None, Notices(failed=[told], behind=[told], look_schedule="@hourly"):
    for callbacks in (), own, [own]:
        made = dags(notices=notices, default_args={{"on_failure_callback": callbacks}} if callbacks else {{}})
        found = {{}}
        for name, dag in made.items():
            for task in dag.tasks:
                called = task.on_failure_callback or ()
                called = called if isinstance(called, (list, tuple)) else [called]
                found[f"{{name}}.{{task.task_id}}"] = [each.__name__ for each in called]
        print("=" + json.dumps(found))
"""


ASKING = f"""
import json, os
from pathlib import Path
from riverrun_airflow.dag_factory import dags
from riverrun_airflow.notices import Notices

PROJECT = {PROJECT!r}.replace('quality = "m:expectations"', 'quality = "m:expectations"\\ngate = true')
Path(os.environ["RIVERRUN_CONFIG"]).write_text(PROJECT)

def told(context):
    pass

for asks in False, True:
    made = dags(notices=Notices(waiting=[told]), select="clicks", asks_about_held=asks)
    tasks = [(name, task) for name, dag in made.items() for task in dag.tasks if getattr(task, "notifiers", ())]
    found = {{f"{{name}}.{{task.task_id}}": [task.trigger_rule.value, sorted(task.upstream_task_ids)] for name, task in tasks}}
    print("=" + json.dumps(found))
"""


def test_questions_are_notified_and_held_outputs_are_asked_about_if_wanted(tmp_path: Path) -> None:
    usual, asking = printed_by(ASKING, tmp_path)
    assert [*usual] == ["clicks__release.approve", "clicks__release.settle"]
    after = ["one_failed", ["run"]]
    assert asking == {**usual, "clicks__run.decide": after, "clicks__backfill.decide": after}


def test_runs_gates_checks_decisions_and_archives_tell_of_their_failures(tmp_path: Path) -> None:
    plain, own, listed, *noticed = printed_by(NOTICES, tmp_path)
    assert {*map(tuple, plain.values())} == {()}
    assert own == listed
    assert {*map(tuple, own.values())} == {("own",)}
    telling = [
        f"clicks__{task}"
        for task in ("run.run", "backfill.run", "held.decide", "quality.judge", "release.gate", "lag.look")
    ]
    telling.append("all__archive.archive")
    for found, others in zip(noticed, ([], ["own"], ["own"]), strict=True):
        assert {task: found[task] for task in telling} == {task: ["told", *others] for task in telling}
        assert found["clicks__release.cut"] == others
