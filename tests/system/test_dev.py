"""`riverrun dev` in a process of its own: files are saved while it runs, and records come all the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.presence import present
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

TOML = """
[kafka]
"bootstrap.servers" = "{servers}"
[apps.{name}]
topology = "{name}_topology:build"
[apps.{name}.config]
"commit.interval.ms" = 100
"""
TOPOLOGY = """
from riverrun import STRING, Consumed, Produced
from {name}_words import greeting

def build(builder):
    builder.stream("{name}.in", Consumed(STRING, STRING)).map_values(greeting).to("{name}.out", Produced(STRING, STRING))
    return builder.build()
"""
WORDS = """
def greeting(name):
    return f"{word} {{name}}"
"""
SLOW = """
import time

def greeting(name):
    time.sleep(0.3)
    return f"well {name}"
"""
TEST = """
from {name}_words import greeting

def test_greetings_are_short():
    assert len(greeting("ann")) < 20
"""


class Project:
    """A project whose application `riverrun dev` runs."""

    def __init__(self, broker: Broker, name: str, directory: Path) -> None:
        self.broker, self.name, self.directory = broker, name, directory
        self.words = directory / f"{name}_words.py"
        (directory / "streams.toml").write_text(TOML.format(servers=broker.bootstrap_servers, name=name))
        (directory / f"{name}_topology.py").write_text(TOPOLOGY.format(name=name))
        (directory / "tests").mkdir()
        (directory / "tests" / "test_words.py").write_text(TEST.format(name=name))
        self.save("hello")
        broker.create(1, f"{name}.in", f"{name}.out")
        self._log = directory / "log"
        command = [sys.executable, "-m", "riverrun.cli", "dev", name, "--tests", "tests"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=self._log.open("w"), stderr=subprocess.STDOUT
        )

    def save(self, word: str) -> None:
        self.words.write_text(WORDS.format(word=word))

    def log(self) -> str:
        return self._log.read_text()

    def until_log_has(self, text: str) -> None:
        until(lambda: text in self.log(), f"printed {text!r}", self.log)

    def write(self, key: str) -> None:
        self.broker.write(f"{self.name}.in", [(key.encode(), b"ann", 0)])

    def answers(self, key: str) -> list[str]:
        """Write a record, and return what has come of those with its key."""
        self.write(key)
        found = self.broker.read(f"{self.name}.out")
        return [present(record.value).decode() for record in found if record.key == key.encode()]

    def until_it_answers(self, text: str, key: str) -> None:
        until(lambda: text in self.answers(key), f"answered {text!r}", self.log)


@pytest.fixture
def project(broker: Broker, unique: str, tmp_path: Path) -> Iterator[Project]:
    project = Project(broker, unique, tmp_path)
    yield project
    if project.process.poll() is None:
        project.process.kill()
    project.process.wait()


def test_each_save_runs_the_new_code_if_it_can_be_read_and_passes_its_tests(project: Project) -> None:
    project.until_it_answers("hello ann", "first")
    project.save("bye")
    project.until_it_answers("bye ann", "changed")
    assert f"Changed: {project.words.name}\n" in project.log()

    project.words.write_text("def greeting(name:\n")
    project.until_log_has("Tests fail: this code does not run")
    (project.directory / "tests" / "test_words.py").write_text("def test_nothing():\n    pass\n")
    project.until_log_has(f"{project.words.name}, line 1.")
    assert "SyntaxError" in project.log()
    assert "Traceback" not in project.log()
    project.save("good day")
    project.until_it_answers("good day ann", "mended")

    project.words.write_text("def greeting(name):\n    return 1 / 0\n")
    failed = f"{project.words.name}, line 2, in greeting: return 1 / 0"
    until(lambda: failed in project.log(), "failed", project.log, turn=lambda: project.write("failing"))
    project.words.write_text(SLOW)
    project.until_it_answers("well ann", "failing")

    project.process.send_signal(signal.SIGINT)
    assert project.process.wait(DEADLINE_S) == 0
    *_, busy, done = project.log().rstrip().splitlines()
    assert busy.startswith("Busy nodes: KSTREAM-MAPVALUES-0000000001 ")
    assert " processed in " in done
