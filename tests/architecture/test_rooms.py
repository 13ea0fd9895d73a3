"""The house can be held in one's head: few folders, few modules, and each says what it is for."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MOST = {"pipeline": 474, "plugins": 33}
FOUND = {room: list((ROOT / room).rglob("*.py")) for room in MOST}
FILES = [file for found in FOUND.values() for file in found]
FOLDERS = {file.parent for file in FILES}


def test_there_are_few_modules_and_folders() -> None:
    assert {room: len(found) for room, found in FOUND.items() if len(found) > MOST[room]} == {}, (
        "put code into the module that has the idea"
    )
    assert len(FOLDERS) <= 41, "a folder is a contract of the import linter, or holds five modules or more"


def test_folders_and_modules_say_what_they_are_for() -> None:
    assert [file for file in FILES if not file.read_text().startswith(('"""', 'r"""'))] == []
