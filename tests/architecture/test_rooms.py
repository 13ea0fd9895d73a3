"""The house can be held in one's head: few folders, and each module says what it is for."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = [file for room in ("pipeline", "plugins") for file in (ROOT / room).rglob("*.py")]
FOLDERS = {file.parent for file in FILES}


def test_there_are_few_folders() -> None:
    assert len(FOLDERS) <= 42, "a folder is a contract of the import linter, or holds five modules or more"


def test_folders_and_modules_say_what_they_are_for() -> None:
    assert [file for file in FILES if not file.read_text().startswith(('"""', 'r"""'))] == []
