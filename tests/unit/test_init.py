"""`riverrun init`: a new project runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., tuple[int, str]]

ROOT = Path(__file__).parents[2]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugins")))}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=directory, env=environ, capture_output=True, text=True, check=False
    )


def test_a_new_project_passes_its_test_is_described_and_is_clean(tmp_path: Path, riverrun_here: Command) -> None:
    assert riverrun_here("init", "click-counts")[0] == 0
    project = tmp_path / "click-counts"
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in tested.stdout, tested.stdout
    described = run(project, "riverrun.cli", "describe", "click-counts", "--version", "v1")
    assert "topics: [clicks]" in described.stdout
    linted = run(project, "ruff", "check", "--isolated", "--no-cache", ".")
    assert linted.returncode == 0, linted.stdout


def test_a_new_project_says_how_to_install_pytest_where_it_is_missing(tmp_path: Path, riverrun_here: Command) -> None:
    assert "\n  cd shop\n  python -m pytest\n" in riverrun_here("init", "shop")[1]
    # As in an environment that lacks it.
    hiding = "import sys; sys.modules['pytest'] = None; from riverrun.cli.main import main; main()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "pipeline")}
    command = [sys.executable, "-c", hiding, "init", "hello"]
    shown = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False).stdout
    assert "\n  cd hello\n  python -m pip install pytest\n  python -m pytest\n" in shown


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path, riverrun_here: Command) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    code, shown = riverrun_here("init", "mine")
    assert code == 1
    assert "mine already exists, and is not empty" in shown
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["Clicks", "class", "riverrun", "../clicks", "1st", "clicks-"])
def test_a_name_that_is_no_application_or_module_is_refused(tmp_path: Path, riverrun_here: Command, name: str) -> None:
    code, shown = riverrun_here("init", name)
    assert code == 1
    assert "cannot be the name of an application and its Python module" in shown
    assert not list(tmp_path.iterdir())
