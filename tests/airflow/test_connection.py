"""How tasks and DAG files find the project: a connection, a variable, or the environment."""

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

FILE = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
"client.id" = "mine"
[spark]
"spark.master" = "local[2]"
[apps.clicks]
topology = "clicks:build"
[apps.clicks.versions]
v2 = "clicks:build_v2"
"""
SCRIPT = """
import json, os, sys
from riverrun_airflow.hooks import RiverrunHook
from riverrun_airflow.operators import BoundedRunOperator
from riverrun_airflow.releases import ReleaseOperator
from airflow.sdk.exceptions import AirflowFailException

def connected(environ, connection="riverrun_default"):
    os.environ.update(environ)
    try:
        project = RiverrunHook(connection).get_conn()
        return [project.path.name, dict(project.kafka), dict(project.spark)]
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    finally:
        for name in environ:
            del os.environ[name]

class Kept(dict):
    set = dict.__setitem__

def failure(operator):
    try:
        operator.execute({"run_id": "manual", "task_state_store": Kept()})
    except AirflowFailException as error:
        return str(error)

for environ, *connection in json.loads(sys.argv[1]):
    print(json.dumps(connected(environ, *connection)))
print(json.dumps(RiverrunHook("gone").test_connection()))
os.environ["RIVERRUN_CONFIG"] = sys.argv[2]
print(json.dumps(failure(ReleaseOperator(task_id="a", app="clicks", step="jump"))))
print(json.dumps(failure(BoundedRunOperator(task_id="b", app="klicks"))))
print(json.dumps(failure(BoundedRunOperator(task_id="c", app="clicks", dry="perhaps"))))
print(json.dumps(failure(BoundedRunOperator(task_id="d", app="clicks", riverrun_conn_id="gone"))))
"""


def test_the_project_is_found_by_a_connection_a_variable_or_the_environment(tmp_path: Path) -> None:
    for name in ("one.toml", "two.toml", "three.toml"):
        (tmp_path / name).write_text(FILE)
    by_variable = {"AIRFLOW_VAR_RIVERRUN_PROJECT": str(tmp_path / "two.toml")}
    by_environment = {"RIVERRUN_CONFIG": str(tmp_path / "three.toml")}
    full = connection(
        host="broker:9092",
        login="ann",
        password="secret",  # noqa: S106 - of no broker
        extra={"project": str(tmp_path / "one.toml"), "kafka": '{"security.protocol": "SSL"}', "master": "sc://s:1"},
    )
    cases = [
        ({"AIRFLOW_CONN_RIVERRUN_DEFAULT": full} | by_variable | by_environment,),
        ({"AIRFLOW_CONN_OTHER": connection(extra={"project": str(tmp_path / "one.toml")})}, "other"),
        (by_variable | by_environment,),
        (by_environment,),
        ({},),
        (by_environment, "gone"),
        ({"AIRFLOW_CONN_OTHER": json.dumps({"conn_type": "http"})}, "other"),
        ({"AIRFLOW_CONN_RIVERRUN_DEFAULT": connection(extra={"project": "/no/streams.toml"})},),
        ({"AIRFLOW_CONN_RIVERRUN_DEFAULT": connection(extra={"kafka": "SSL"})},),
    ]
    environ = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(cases), str(tmp_path / "one.toml")],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in '["n']
    first, other, variable, environment, nothing, gone, wrong, missing, text, tested, *failures = found
    kafka = {"bootstrap.servers": "127.0.0.1:1", "client.id": "mine"}
    own = {
        "bootstrap.servers": "broker:9092",
        "sasl.username": "ann",
        "sasl.password": "secret",
        "security.protocol": "SSL",
    }
    assert first == ["one.toml", kafka | own, {"spark.remote": "sc://s:1"}]
    assert other == ["one.toml", kafka, {"spark.master": "local[2]"}]
    assert [variable[0], environment[0]] == ["two.toml", "three.toml"]
    assert nothing.startswith("ConfigError: The location of streams.toml is unknown\nHint: airflow connections add")
    assert gone.startswith("ConfigError: Airflow has no connection 'gone'\nHint: airflow connections add gone")
    assert wrong.startswith("ConfigError: The connection 'other' is of type 'http'")
    assert missing.startswith("ConfigError: /no/streams.toml does not exist")
    assert text.startswith("ConfigError: kafka in the extra of connection 'riverrun_default' is not a JSON object")
    assert tested[0] is False
    step, app, dry, conn = failures
    assert step.startswith("'jump' is not a step of a release: plan, start")
    assert "has no application 'klicks'\nHint: Did you mean 'clicks'?" in app
    assert dry == "dry is 'perhaps', which is neither true nor false"
    assert conn.startswith("Airflow has no connection 'gone'")


def connection(**fields: object) -> str:
    return json.dumps({"conn_type": "riverrun", **fields})
