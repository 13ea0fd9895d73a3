"""`riverrun init`: a new project runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugins")))}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=directory, env=environ, capture_output=True, text=True, check=False
    )


def init(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(directory, "riverrun.cli", "init", *arguments)


def test_a_new_project_passes_its_test_is_described_and_is_clean(tmp_path: Path) -> None:
    assert init(tmp_path, "click-counts").returncode == 0
    project = tmp_path / "click-counts"
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in tested.stdout, tested.stdout
    described = run(project, "riverrun.cli", "describe", "click-counts", "--version", "v1")
    assert "topics: [clicks]" in described.stdout
    linted = run(project, "ruff", "check", "--isolated", "--no-cache", ".")
    assert linted.returncode == 0, linted.stdout


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    refused = init(tmp_path, "mine")
    assert refused.returncode == 1
    assert "mine already exists, and is not empty" in refused.stderr
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["Clicks", "class", "riverrun", "../clicks", "1st", "clicks-"])
def test_a_name_that_is_no_application_or_module_is_refused(tmp_path: Path, name: str) -> None:
    refused = init(tmp_path, name)
    assert refused.returncode == 1
    assert "cannot be the name of an application and its Python module" in refused.stderr
    assert not list(tmp_path.iterdir())
