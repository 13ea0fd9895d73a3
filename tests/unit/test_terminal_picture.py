"""The recordings of a terminal in the documentation show what commands say today."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.system.followed_pages import commands_of, lines_missing
from tests.terminal_picture import PICTURES, PROJECT, RECORDS, TUTORIAL, picture, recorded

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "pictures"
HINT = "python -m tests.terminal_picture docs/pictures records them again."


def shown(svg: str) -> list[str]:
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314 - our own
    return [text.text or "" for text in texts]


@pytest.mark.parametrize("name", PICTURES)
def test_a_recording_shows_its_commands(name: str) -> None:
    lines = shown((DIRECTORY / name).read_text())
    assert [line for line in lines if line.startswith("$ ")] == [f"$ {command}" for command in PICTURES[name]], HINT


@pytest.mark.parametrize("name", PICTURES)
def test_a_recording_begins_with_content_and_is_complete_without_motion(name: str) -> None:
    texts = list(ET.parse(DIRECTORY / name).iter("{http://www.w3.org/2000/svg}text"))  # noqa: S314 - our own
    second = next(n for n, text in enumerate(texts[1:], 1) if (text.text or "").startswith("$ "))
    assert [text.get("style") for text in texts[:second]] == ["animation:none"] * second, HINT
    assert all((text.get("style") or "").startswith("animation-delay:") for text in texts[second:]), HINT
    style = (DIRECTORY / name).read_text()
    assert "print{text{animation:none}}" in style
    assert re.findall(r"opacity:\d", style) == ["opacity:0"], "only the animation hides a line"


def test_the_recorded_topology_is_that_of_a_new_project(tmp_path: Path) -> None:
    lines = shown((DIRECTORY / "first-project.svg").read_text())
    again = shown(picture(recorded(PROJECT, tmp_path), ""))
    assert lines[lines.index("Topologies:") :] == again[again.index("Topologies:") :], HINT
    assert "1 passed" in again


def test_the_recorded_results_are_those_of_the_tutorial() -> None:
    expected = commands_of(TUTORIAL.read_text())
    lines = "\n".join(shown((DIRECTORY / "first-records.svg").read_text()))
    known = [command for command in RECORDS if command in expected]
    assert len(known) == 8
    assert [missing for command in known for missing in lines_missing(expected[command], lines)] == [], HINT
