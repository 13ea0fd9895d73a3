"""Pages that are followed: their files are written and their commands are run, in order, as a reader would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import DEADLINE_S

KAFKA = "kafka-4.3.1"
_BLOCK = re.compile(
    r"(?:^(?P<lead>[^\n]*`(?P<file>[\w.]+)`[^\n]*):\n\n)?^```(?P<kind>console|python|toml|json|sql)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_OFFSET = re.compile(r"^([\w.-]+-\d+)@\d+ ", re.MULTILINE)
_LOOKS = ("riverrun topic read", "riverrun lag", "riverrun sql", "curl")
"""Commands that only look: what they show may take a moment to come."""
_NOISE = ("incubator", "NativeCodeLoader", "log4j", "Traceback")
_SECONDS = 120


def home_of_a_newcomer(directory: Path) -> Path:
    """A home without data, with the download of Kafka if there is one: else the first start fetches it."""
    cached = Path("~/.cache/riverrun").expanduser()
    directory.mkdir()
    if (cached / KAFKA).exists():
        (directory / KAFKA).symlink_to(cached / KAFKA)
    return directory


class Shell:
    """A directory, and commands that are run in it.

    Args:
        directory: The directory, which is made.
        ports: What stands in the place of a page's ports, which somebody may use.
        home: Where downloads are, and the broker's data.
        python: The Python whose packages are used.
    """

    def __init__(self, directory: Path, ports: dict[str, str], home: Path, python: Path = Path(sys.executable)) -> None:
        directory.mkdir()
        self.directory, self.ports = directory, ports
        commands = home / "bin"
        commands.mkdir()
        for name, words in ("riverrun", "-m riverrun.cli"), ("python", ""):
            (commands / name).write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            (commands / name).chmod(0o755)
        path = f"{commands}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "RIVERRUN_HOME": str(home), "COLUMNS": "200"}

    def placed(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text

    def write(self, name: str, content: str, *, append: bool) -> None:
        with (self.directory / name).open("a" if append else "w") as file:
            file.write(self.placed(content))

    def enter(self, name: str) -> None:
        """Go into a project that a command has made, and let it have free ports."""
        self.directory /= name
        config = self.directory / "streams.toml"
        config.write_text(self.placed(config.read_text()))

    def start(self, command: str) -> subprocess.Popen[str]:
        words = self.placed(command)
        return subprocess.Popen(
            ["sh", "-c", f"exec {words}" if words.startswith("riverrun") else words],
            text=True,
            cwd=self.directory,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: str) -> str:
        process = self.start(command)
        shown, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command} ended with {process.returncode}\n{shown}"
        return shown


def follow(page: str, shell: Shell) -> None:
    """Do what a page says, and compare what commands show with it.

    A worker runs until the text between two blocks says Ctrl-C. `...` in a line stands for anything.
    Offsets of records may differ.
    """
    worker: Any = None
    end = 0
    for block in _BLOCK.finditer(page):
        if worker is not None and "Ctrl-C" in page[end : block.start()]:
            worker.send_signal(signal.SIGINT)
            assert worker.wait(DEADLINE_S) == 0
            worker = None
        end = block.end()
        if block["kind"] != "console":
            if block["file"]:
                shell.write(block["file"], block["text"], append="Append" in block["lead"])
            continue
        for command, expected in _COMMAND.findall(block["text"]):
            if command.startswith("cd "):
                shell.enter(command.removeprefix("cd "))
            elif command.startswith("riverrun worker"):
                worker = shell.start(command)
                _until_shown(worker, expected.strip())
            else:
                compared(shell, command, expected)


def commands_of(page: str) -> dict[str, str]:
    """The commands of a page, with what it says that each shows at first."""
    blocks = [block for block in _BLOCK.finditer(page) if block["kind"] == "console"]
    found = [pair for block in blocks for pair in _COMMAND.findall(block["text"])]
    return dict(reversed(found))


def compared(shell: Shell, command: str, expected: str) -> str:
    """Run a command, make sure that it shows what a page says, and return what it shows."""
    expected = shell.placed(expected)
    deadline = time.monotonic() + (_SECONDS if command.startswith(_LOOKS) else 0)
    shown = shell.run(command)
    while (missing := lines_missing(expected, shown)) and time.monotonic() < deadline:
        shown = shell.run(command)
    assert not missing, f"{command}\n{shown}"
    assert not [noise for noise in _NOISE if noise in shown], f"{command}\n{shown}"
    return shown


def lines_missing(expected: str, shown: str) -> list[str]:
    """Lines of a page that were not shown."""
    found = _OFFSET.sub(r"\1 ", shown)
    lines = [_OFFSET.sub(r"\1 ", line) for line in filter(None, expected.splitlines())]
    return [line for line in lines if not re.search(".*".join(map(re.escape, line.split("..."))), found)]


def _until_shown(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a process has printed a line; what it prints later is thrown away."""
    assert process.stdout is not None
    seen = []
    for text in process.stdout:
        seen.append(text)
        if text.strip() == line:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return
    pytest.fail(f"it ended before it said {line!r}: {''.join(seen)}")
