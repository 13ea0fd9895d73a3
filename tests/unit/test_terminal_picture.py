"""The recording of a terminal in the documentation shows what commands say today."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from tests.terminal_picture import COMMANDS, picture, recorded

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def shown(svg: str) -> list[str]:
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314 - our own
    return [text.text or "" for text in texts]


def test_the_recording_shows_its_commands_and_what_they_say(tmp_path: Path) -> None:
    lines = shown((PICTURES / "first-project.svg").read_text())
    assert [line for line in lines if line.startswith("$ ")] == [f"$ {command}" for command in COMMANDS]
    anew = shown(picture(recorded(COMMANDS, tmp_path), ""))
    described = slice(lines.index("Topologies:"), -1)
    hint = "python -m tests.terminal_picture docs/pictures/first-project.svg records it anew."
    assert lines[described] == anew[anew.index("Topologies:") : -1], hint
    assert "1 passed" in anew
