"""The page in Airflow's navigation, in Airflow's own server: rights to see it and to act, and its content."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG

if TYPE_CHECKING:
    from tests.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "from riverrun_airflow.plugin import RiverrunPlugin  # noqa: F401\n"

pytestmark = [pytest.mark.airflow, pytest.mark.broker]

SCRIPT = """
import json, sys
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient
from riverrun_airflow import overview

def cookie(name, role):
    return {"_token": get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))}

with TestClient(create_app(), base_url="http://localhost") as client:
    answers = []
    def ask(path, **cookies):
        client.cookies.clear()
        client.cookies.update(cookies)
        answer = client.get(path, follow_redirects=False)
        answers.append([answer.status_code, answer.text])
    viewer, admin = cookie("ann", "VIEWER"), cookie("bob", "ADMIN")
    ask("/riverrun/")
    ask("/riverrun/apps/" + sys.argv[1])
    ask("/riverrun/", **viewer)
    ask("/riverrun/apps/" + sys.argv[1], **viewer)
    ask("/riverrun/apps/" + sys.argv[1], **admin)
    ask("/riverrun/apps/gone", **admin)
    ask("/riverrun/apps/copied", **viewer)
    ask("/api/v2/plugins", **admin)
    docs = "/riverrun/apps/" + sys.argv[1] + "/docs/"
    ask(docs + "site/index.html")
    ask(docs + "site/static/styles.css")
    ask(docs + "site/index.html", **viewer)
    for path in ("site/gone.html", "results/secret.json", "site/static/..%2F..%2Fresults%2Fsecret.json"):
        ask(docs + path, **admin)
    ask(docs + "site/static/..%2Findex.html")
    for file in ("page.css", "page.js", "airflow.js"):
        ask("/riverrun/" + file)
    print("=" + json.dumps(answers))
"""


def test_users_see_the_page_and_only_those_with_rights_get_links_to_trigger(
    broker: Broker, migrated: Path, unique: str, tmp_path: Path
) -> None:
    example = (ROOT / "tests" / "system" / "example_app.py").read_text()
    (tmp_path / f"{unique}.py").write_text(example.replace('"example"', f'"{unique}"'))
    servers = json.dumps(broker.bootstrap_servers)
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = {servers}\n[apps.{unique}]\ntopology = "{unique}:build"\ndata_docs = "docs"\n'
        f'quality = "{unique}:expectations"\ngate = true\n'
    )
    other = tmp_path / "other"
    other.mkdir()
    (other / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = {servers}\n[apps.copied]\ntopology = "{unique}:build"\n'
    )
    for path in ("site/index.html", "site/static/styles.css", "results/secret.json"):
        file = tmp_path / "docs" / unique / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the {path}")
    broker.create(1, *(f"{unique}.{name}" for name in ("payments", "sums", "receipts")))
    broker.write(f"{unique}.payments", [(b"ann/1", LONG.serialize(5), 1), (b"ann/2", LONG.serialize(-2), 2)])
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "riverrun_page.py").write_text(PLUGIN)
    environ = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__API__SECRET_KEY": "of this test",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789" * 7,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "plugins"),
        "AIRFLOW_CONN_OTHER": json.dumps({"conn_type": "riverrun", "extra": {"project": str(other / "streams.toml")}}),
        "AIRFLOW_CONN_LOST": json.dumps({"conn_type": "riverrun", "extra": {"project": "/lost.toml"}}),
        "RIVERRUN_CONFIG": str(tmp_path / "streams.toml"),
    }
    shutil.copy(migrated, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, unique], env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line[1:] for line in done.stdout.splitlines() if line.startswith("=")]
    anonymous, stranger, everything, seen, acted, gone, copied, plugins, *docs = json.loads(line)
    assert (anonymous[0], stranger[0], gone[0]) == (401, 401, 404)
    assert (everything[0], seen[0], acted[0]) == (200, 200, 200)
    assert f'href="/riverrun/apps/{unique}"' in everything[1]
    for project, app in ((tmp_path, unique), (other, "copied")):
        assert f"<h2>{project / 'streams.toml'}</h2>" in everything[1]
        assert f'href="/riverrun/apps/{app}"' in everything[1]
    assert "lost: /lost.toml" in everything[1]
    assert everything[1].count("<h3>Topics between applications</h3>") == 2
    assert f">{unique} v1</text>" in everything[1]
    assert (copied[0], "copied" in copied[1], "needs a connection" in gone[1]) == (200, True, False)
    assert "You may look at this application, not act on it." in seen[1]
    assert "Trigger" not in seen[1]
    assert f"Trigger {unique}__release" in acted[1]
    assert f"Trigger {unique}__held" in acted[1]
    assert f'href="/dags/{unique}__backfill"' in acted[1]
    assert "v1 is live; release: none; 2 offsets behind" in acted[1]
    assert 'title="left 0..2"' in acted[1]
    assert '"href":"/riverrun/"' in plugins[1].replace(": ", ":")
    assert [code for code, _ in docs] == [401, 200, 200, 404, 404, 404, 404, 200, 200, 200]
    assert docs[2][1] == "the site/index.html"


def test_offsets_are_expired_gated_done_running_failed_or_left() -> None:
    from riverrun.records import OffsetRange  # noqa: PLC0415
    from riverrun_airflow.overview import OffsetStretch, stretches_of  # noqa: PLC0415

    runs = [("running", OffsetRange(40, 60)), ("died", OffsetRange(10, 50)), ("done", OffsetRange(60, 90))]
    assert stretches_of(5, 20, 100, runs, judged=15) == (
        OffsetStretch("expired", 0, 5),
        OffsetStretch("gated", 5, 15),
        OffsetStretch("done", 15, 20),
        OffsetStretch("failed", 20, 40),
        OffsetStretch("running", 40, 60),
        OffsetStretch("left", 60, 100),
    )
    assert stretches_of(7, 7, 7, []) == (OffsetStretch("expired", 0, 7),)


def test_after_a_failed_run_the_page_says_what_can_be_done() -> None:
    from riverrun.hosting.gated import HeldRun  # noqa: PLC0415
    from riverrun.hosting.release import Release  # noqa: PLC0415
    from riverrun.spark.runs import RunRecord  # noqa: PLC0415
    from riverrun_airflow.overview import Overview  # noqa: PLC0415

    def run(number: int, state: str, by: str = "ann", version: str = "v1") -> RunRecord:
        return RunRecord(str(number), "shop", version, by, number, "clicks-0@0..9", state)

    runs = (run(5, "died"), run(4, "failed", "airflow:own.run/m"), run(3, "done"), run(2, "failed"), run(1, "done"))
    found = Overview(Release("shop", "v1"), (), "", runs, ())
    assert [found.next_step(each) for each in runs] == [
        "Trigger shop__backfill: it resumes from the last commit.",
        "",
        "",
        "A later run has continued from its last commit.",
        "",
    ]
    last = Overview(Release("shop", "v1"), (), "", runs[1:], ())
    assert last.next_step(runs[1]).startswith("Clear its task, or trigger shop__backfill")
    held = Overview(Release("shop", "v1", held=HeldRun("h", "v1")), (), "", runs, ())
    assert held.next_step(runs[0]) == "Decide on the outputs that are held back: shop__held."
    assert not held.next_step(run(6, "done"))
