"""Records commands in a terminal as an animated SVG: `python -m tests.terminal_picture docs/pictures/first-project.svg`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path

COMMANDS = (
    "millrace init hello",
    "cd hello",
    "python -m pytest -q",
    "millrace describe hello --version v1",
)
_COLUMNS, _LINE, _LEFT, _TOP = 104, 19, 16, 44
_SECONDS_PER_CHARACTER, _SECONDS_PER_LINE, _PAUSE_SECONDS = 0.04, 0.06, 0.8
_DURATION = re.compile(r" in \d+\.\d+s")
_STYLE = """<style>
rect{fill:#10191d}circle{fill:#50646f}.c{fill:#4db6ac}
text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d7e3e7;white-space:pre}
text{opacity:0;animation:shown .01s forwards}@keyframes shown{to{opacity:1}}
@media(prefers-reduced-motion:reduce){text{opacity:1;animation:none}}
</style>"""


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


def recorded(commands: tuple[str, ...], directory: Path) -> list[Line]:
    """Run commands one after the other in a shell's way, and return what the terminal shows.

    Args:
        commands: Each fails the recording if it fails.
        directory: Where the first one runs; `cd` goes on from there.
    """
    lines: list[Line] = []
    place, now = directory, 0.5
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        now += len(command) * _SECONDS_PER_CHARACTER
        lines.append(Line(f"$ {command}", now, is_command=True))
        if command.startswith("cd "):
            place /= command.removeprefix("cd ")
            continue
        environ = {**os.environ, "COLUMNS": str(_COLUMNS), "PATH": path}
        done = subprocess.run(  # noqa: S602 - our own commands
            command, shell=True, cwd=place, env=environ, capture_output=True, text=True, check=True
        )
        now += _PAUSE_SECONDS
        for text in _DURATION.sub("", done.stdout).rstrip().splitlines():
            now += _SECONDS_PER_LINE
            lines.append(Line(text.rstrip()[:_COLUMNS], now))
        now += _PAUSE_SECONDS
    return lines


def picture(lines: list[Line], title: str) -> str:
    """Draw lines that appear one after the other; all at once for readers that want no motion."""
    height = _TOP + len(lines) * _LINE + 10
    width = 2 * _LEFT + 8 * _COLUMNS
    shown = [
        f'<text class="{"c" if line.is_command else "o"}" x="{_LEFT}" y="{_TOP + n * _LINE}"'
        f' style="animation-delay:{line.at_s:.2f}s">{escape(line.text)}</text>'
        for n, line in enumerate(lines)
        if line.text
    ]
    dots = [f'<circle cx="{20 + n * 18}" cy="18" r="5"/>' for n in range(3)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    frame = f'<rect width="{width}" height="{height}" rx="8"/>'
    return "\n".join([f"{head}<title>{escape(title)}</title>", _STYLE, frame, *dots, *shown, "</svg>\n"])


def main() -> None:
    """Record, and write the picture to the path that is given."""
    with tempfile.TemporaryDirectory() as directory:
        lines = recorded(COMMANDS, Path(directory))
    Path(sys.argv[1]).write_text(picture(lines, f"A terminal: {'; '.join(COMMANDS)}"))


if __name__ == "__main__":
    main()
