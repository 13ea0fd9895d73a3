"""The demo as a newcomer sees it, with fewer flights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.kafka.embedded.broker import KAFKA_VERSION, EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
DOWNLOADS = Path("~/.cache/riverrun").expanduser()
DAYS = 30

pytestmark = [pytest.mark.only_deep, pytest.mark.broker, pytest.mark.spark, pytest.mark.airflow]


@pytest.fixture
def riverrun(tmp_path: Path, new_port: Callable[[], int]) -> Iterator[list[str]]:
    """The command in a copy of the project, with a broker of its own."""
    port = new_port()
    project = (ROOT / "streams.toml").read_text().replace("127.0.0.1:19092", f"127.0.0.1:{port}")
    (tmp_path / "streams.toml").write_text(project)
    (tmp_path / "dags").mkdir()
    shutil.copy(ROOT / "dags" / "applications.py", tmp_path / "dags")
    home = tmp_path / "home"
    home.mkdir()
    (home / f"kafka-{KAFKA_VERSION}").symlink_to(DOWNLOADS / f"kafka-{KAFKA_VERSION}")
    yield [sys.executable, "-m", "riverrun.cli", "--config", str(tmp_path / "streams.toml"), "--home", str(home)]
    EmbeddedBroker(home / "broker", home, port).stop()


@pytest.mark.usefixtures("broker")  # Kafka's libraries are there once one has been started
def test_the_demo_runs_to_a_release_and_back_and_agrees_with_pandas(riverrun: list[str], tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [*riverrun, "demo", "run", "--days", str(DAYS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Everything agrees" in done.stdout
    assert len(re.findall(r"Checked against pandas, v[12]: [1-9]\d* keys, all equal", done.stdout)) == 3
    assert re.search(r"Publication paused for \d+\.\d s, the worker now writes to staging", done.stdout), (
        "it ran all the time"
    )
    assert re.search(r"\d+ records processed, dropped: .*, engine: (local|spark) \(", done.stdout)
    read = re.search(
        r"v2 has processed ([\d,]+) flights, as one log: ([\d,]+) from the archive, of which the topic has lost ([\d,]+),"
        r" and ([\d,]+) from the topic",
        " ".join(done.stdout.split()),
    )
    assert read, done.stdout
    of_all, archived, lost, rest = (int(count.replace(",", "")) for count in read.groups())
    assert 0 < lost < archived < of_all == archived + rest
    place_of = done.stdout.index
    assert place_of("v2 is live") < place_of("v1 is live; release: rolled-back v2")
