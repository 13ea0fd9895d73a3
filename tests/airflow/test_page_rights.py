"""Rights to see the picture of a project, which names everything in it."""

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

APPS = '[apps.a]\ntopology = "nowhere:build"\n[apps.b]\ntopolgy = "wrong"\n'
ARCHIVE = '[archives.kept]\ntopics = ["t"]\nurl = "kept"\n'
SCRIPT = """
import json, os, sys
from pathlib import Path
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from riverrun.config import ProjectConfig
from riverrun_airflow import overview, page

class Some(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        return details.id in user

sys.path.append(str(Path(sys.argv[1]).parent))
page.get_auth_manager = Some
project = ProjectConfig.load(Path(sys.argv[1]), {})
answers = [page.may_see_all(project, user) for user in json.loads(sys.argv[2])]

counted = Path(sys.argv[1]).parent / "built"
def built():
    found = overview.between(project, {"a": "v1"})
    return len(counted.read_text()) if counted.exists() else 0, found.told

numbers, told = [], built()[1]
numbers += [built()[0], built()[0]]
os.utime(sys.argv[1], ns=(1, 1))
numbers += [built()[0], built()[0]]
print("=" + json.dumps([answers, told, numbers]))
"""


def asked(tmp_path: Path, text: str, *users: list[str]) -> tuple[list[bool], list[str], list[int]]:
    """Return which of these users, who may see some DAGs, may see the picture, what is told with it, and what it took."""
    path = tmp_path / "streams.toml"
    path.write_text(f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n{text}')
    command = [sys.executable, "-c", SCRIPT, str(path), json.dumps(users)]
    environ = os.environ | {"AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line[1:] for line in done.stdout.splitlines() if line.startswith("=")]
    rights, told, numbers = json.loads(line)
    return rights, told, numbers


def test_only_those_who_may_see_everything_see_the_picture(tmp_path: Path) -> None:
    both, archive = ["a__backfill", "b__backfill"], ["kept__archive"]
    rights, told, _ = asked(tmp_path, APPS + ARCHIVE, [], both[:1], both, archive, [*both, *archive])
    assert rights == [False, False, False, False, True]
    assert any(each.startswith("a is not known: Module 'nowhere'") for each in told)


def test_nobody_sees_the_picture_of_a_project_without_applications(tmp_path: Path) -> None:
    assert asked(tmp_path, ARCHIVE, [], ["kept__archive"])[0] == [False, False]


def test_what_is_not_known_is_told_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "leaking.py").write_text('raise RuntimeError("postgresql://ann:hunter2@db/shop")')
    _, told, _ = asked(tmp_path, '[apps.a]\ntopology = "leaking:build"\n', [])
    assert "postgresql://***@db/shop" in told[0]


BUILDING = """
from riverrun import STRING, Consumed

def build(builder):
    with open("{counted}", "a") as built:
        built.write(".")
    builder.stream("t", Consumed(STRING, STRING)).to("out")
    return builder.build()
"""


def test_the_picture_is_made_again_when_the_project_has_changed(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(BUILDING.format(counted=tmp_path / "built"))
    _, told, numbers = asked(tmp_path, '[apps.a]\ntopology = "counting:build"\n')
    assert (told, numbers) == ([], [1, 1, 2, 2])


def test_a_picture_that_lacks_an_application_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(BUILDING.format(counted=tmp_path / "built"))
    _, told, numbers = asked(tmp_path, f'[apps.a]\ntopology = "counting:build"\n{APPS.replace("[apps.a]", "[apps.c]")}')
    assert (len(told), numbers) == (2, [2, 3, 4, 5])
