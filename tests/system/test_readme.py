"""What a newcomer does: the commands of README.md, as they stand there, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

README = (Path(__file__).parents[2] / "README.md").read_text()
KAFKA = "kafka-4.3.1"
pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1500)]

_FILE = re.compile(r"`([\w.]+)`[^\n]*:\n\n```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TERMINAL = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Shell:
    """A directory with what the README puts there, and commands that are run in it.

    Args:
        directory: The directory.
        ports: What stands in the place of the README's ports, which somebody may use.
        home: Where downloads are, and the broker's data.
    """

    def __init__(self, directory: Path, ports: dict[str, str], home: Path) -> None:
        self.directory, self.ports = directory, ports
        commands = directory / "bin"
        commands.mkdir()
        (commands / "millrace").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipeline.cli "$@"\n')
        (commands / "millrace").chmod(0o755)
        path = f"{commands}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "MILLRACE_HOME": str(home), "COLUMNS": "200"}
        for name, content in _FILE.findall(README):
            (directory / name).write_text(self.placed(content))

    def placed(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text

    def start(self, command: str) -> subprocess.Popen[str]:
        words = self.placed(command)
        command_line = ["sh", "-c", f"exec {words}" if words.startswith("millrace") else words]
        return subprocess.Popen(
            command_line,
            text=True,
            cwd=self.directory,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: str) -> str:
        process = self.start(command)
        shown, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}\n{shown}"
        return shown


@pytest.fixture
def shell(tmp_path: Path, new_port: Callable[[], int]) -> Iterator[Shell]:
    home, cached = tmp_path / "home", Path("~/.cache/millrace").expanduser()
    home.mkdir()
    if (cached / KAFKA).exists():  # else the first start fetches it
        (home / KAFKA).symlink_to(cached / KAFKA)
    directory = tmp_path / "project"
    directory.mkdir()
    shell = Shell(directory, {"19092": str(new_port()), "8090": str(new_port())}, home)
    yield shell
    shell.run("millrace broker stop")


def until_shown(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a process has printed a line; what it prints later is thrown away."""
    assert process.stdout is not None
    seen = []
    for text in process.stdout:
        seen.append(text)
        if text.strip() == line:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return
    pytest.fail(f"it ended before it said {line!r}: {''.join(seen)}")


def test_the_commands_of_the_readme_show_what_it_says(shell: Shell) -> None:
    worker: Any = None
    for terminal in _TERMINAL.findall(README):
        if worker is not None and "millrace run" in terminal:  # it was stopped with Ctrl-C before
            worker.send_signal(signal.SIGINT)
            assert worker.wait(60) == 0
        for command, expected in _COMMAND.findall(terminal):
            if command.startswith("millrace worker"):
                worker = shell.start(command)
                until_shown(worker, expected.strip())
                continue
            shown = shell.run(command)
            for line in filter(None, expected.splitlines()):
                assert line in shown, f"{command}\n{shown}"
            for noise in ("incubator", "NativeCodeLoader", "log4j", "Traceback"):
                assert noise not in shown, f"{command}\n{shown}"
    assert worker is not None
