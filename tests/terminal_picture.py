"""Records commands in a terminal as animated SVGs: `python -m tests.terminal_picture docs/pictures`."""

from __future__ import annotations

import re
import signal
import socket
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.followed_pages import Shell, commands_of, compared, home_of_a_newcomer

if TYPE_CHECKING:
    import subprocess

PROJECT = (
    "riverrun init hello",
    "cd hello",
    "python -m pytest -q",
    "riverrun describe hello --version v1",
)
RECORDS = (
    "riverrun init shop",
    "cd shop",
    "riverrun broker start",
    "riverrun topic create clicks click-counts",
    "cat > clicks.json",
    "riverrun topic write clicks clicks.json --key user --timestamp at",
    "riverrun worker shop --server 127.0.0.1:8090 &",
    "riverrun topic read click-counts --app shop",
    "riverrun lag shop",
    "kill %1",
    "riverrun broker stop",
)
CLICKS = """\
{"user": "ann", "page": "/", "at": "2026-01-01T10:00:00Z"}
{"user": "ann", "page": "/ready", "at": "2026-01-01T10:01:00Z"}
{"user": "bob", "page": "/cart", "at": "2026-01-01T10:02:00Z"}
{"user": "bob", "page": "/health", "at": "2026-01-01T10:03:00Z"}
"""
TUTORIAL = Path(__file__).parents[1] / "docs/tutorials/first-hour.md"
PICTURES = {"first-project.svg": PROJECT, "first-records.svg": RECORDS}
_PORTS = ("19092", "8090")
_COLUMNS, _LINE, _LEFT, _TOP = 104, 19, 16, 44
_SECONDS_PER_CHARACTER, _SECONDS_PER_LINE, _PAUSE_SECONDS = 0.04, 0.06, 0.8
_DURATION = re.compile(r" in \d+\.\d+s")
_STYLE = """<style>
rect{fill:#10191d}circle{fill:#50646f}.c{fill:#4db6ac}
text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d7e3e7;white-space:pre}
text{animation:shown .01s backwards}@keyframes shown{from{opacity:0}}
@media(prefers-reduced-motion:reduce),print{text{animation:none}}
</style>"""
"""Lines are hidden by their animation alone, so that a picture without motion is complete: on paper, or in a converter."""


@dataclass(frozen=True)
class Line:
    """A line of the terminal.

    Args:
        text: What it says.
        at_s: When it appears.
        is_command: Whether somebody has typed it.
    """

    text: str
    at_s: float
    is_command: bool = False


class Recording:
    """Runs commands in a shell's way, and keeps what the terminal shows.

    Args:
        directory: Where the first command runs, and where a home without data is made.
    """

    def __init__(self, directory: Path) -> None:
        self.lines: list[Line] = []
        self._now = 0.5
        self._ports = {port: _free_port() for port in _PORTS}
        self._shell = Shell(directory / "project", self._ports, home_of_a_newcomer(directory / "home"))
        self._shell.environ["COLUMNS"] = str(_COLUMNS)
        self._worker: subprocess.Popen[str] | None = None
        self._has_broker = False
        self._expected = commands_of(TUTORIAL.read_text())

    def run(self, command: str) -> None:
        """Run a command; it fails the recording if it fails."""
        self._now += len(command) * _SECONDS_PER_CHARACTER
        self.lines.append(Line(f"$ {command}", self._now, is_command=True))
        if command.startswith("cd "):
            self._shell.enter(command.removeprefix("cd "))
        elif command.startswith("cat > "):
            self._shell.write(command.removeprefix("cat > "), CLICKS, append=False)
            self._show(CLICKS)
        elif command.endswith(" &"):
            self._worker = self._shell.start(command.removesuffix(" &"))
            self._show(self._until_running(self._worker))
        elif command == "kill %1":
            self._show(self._ended())
        else:
            self._has_broker |= command == "riverrun broker start"
            self._show(compared(self._shell, command, self._expected.get(command, "")))

    def close(self) -> None:
        """End the worker and the broker, if the recording has failed."""
        if self._worker is not None:
            self._worker.kill()
        if self._has_broker:
            self._shell.run("riverrun broker stop")

    def _show(self, shown: str) -> None:
        for port, own in self._ports.items():
            shown = shown.replace(own, port)
        self._now += _PAUSE_SECONDS
        for text in _DURATION.sub("", shown).rstrip().splitlines():
            self._now += _SECONDS_PER_LINE
            self.lines.append(Line(text.rstrip()[:_COLUMNS], self._now))
        self._now += _PAUSE_SECONDS

    def _until_running(self, worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        seen = []
        while "Worker is running\n" not in seen:
            seen.append(worker.stdout.readline())
            assert seen[-1], f"the worker ended: {''.join(seen)}"
        return "".join(seen)

    def _ended(self) -> str:
        assert self._worker is not None
        self._worker.send_signal(signal.SIGTERM)
        shown, _ = self._worker.communicate(timeout=120)
        self._worker = None
        return shown


def recorded(commands: tuple[str, ...], directory: Path) -> list[Line]:
    """Run commands one after the other in a directory, and return what the terminal shows."""
    with closing(Recording(directory)) as recording:
        for command in commands:
            recording.run(command)
        return recording.lines


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def picture(lines: list[Line], title: str) -> str:
    """Draw lines that appear one after the other; all at once for readers that want no motion, and on paper.

    The picture begins with the first command and its output.
    """
    begin_s = next((line.at_s for line in lines[1:] if line.is_command), 0) - _PAUSE_SECONDS
    height = _TOP + len(lines) * _LINE + 10
    width = 2 * _LEFT + 8 * _COLUMNS
    shown = [
        f'<text class="{"c" if line.is_command else "o"}" x="{_LEFT}" y="{_TOP + n * _LINE}"'
        f"{_delayed(line.at_s - begin_s)}>{escape(line.text)}</text>"
        for n, line in enumerate(lines)
        if line.text
    ]
    dots = [f'<circle cx="{20 + n * 18}" cy="18" r="5"/>' for n in range(3)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    frame = f'<rect width="{width}" height="{height}" rx="8"/>'
    return "\n".join([f"{head}<title>{escape(title)}</title>", _STYLE, frame, *dots, *shown, "</svg>\n"])


def _delayed(seconds: float) -> str:
    return f' style="animation-delay:{seconds:.2f}s"' if seconds > 0 else ' style="animation:none"'


def main() -> None:
    """Record, and write the pictures into the directory that is given."""
    for name, commands in PICTURES.items():
        with tempfile.TemporaryDirectory() as directory:
            lines = recorded(commands, Path(directory))
        (Path(sys.argv[1]) / name).write_text(picture(lines, f"A terminal: {'; '.join(commands)}"))


if __name__ == "__main__":
    main()
