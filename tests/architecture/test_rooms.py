"""Folders are small, so that their names tell what is in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MOST = 10
OF_ONE_KIND = {
    "pipeline/riverrun/cli": "a module for each group of commands",
    "pipeline/riverrun/dsl": "a module for each class of Kafka Streams' DSL; they return each other",
    "pipeline/riverrun/operators": "a module for each kind of operator",
    "pipeline/riverrun/project": "a module for each object of the front door",
    "pipeline/riverrun/sql/functions": "a module for each family of ksqlDB's functions",
    "plugins/riverrun_airflow": "a module for each of Airflow's own kinds, by whose names DAGs import it",
}
"""Folders with more modules, which are alike, and the reason: a folder between would have no other name."""


def test_a_folder_of_many_modules_has_modules_of_one_kind() -> None:
    files = [file for room in ("pipeline", "plugins") for file in (ROOT / room).rglob("*.py")]
    modules = Counter(str(file.parent.relative_to(ROOT)) for file in files if file.name != "__init__.py")
    assert {folder for folder, count in modules.items() if count > MOST} == set(OF_ONE_KIND)


def test_a_folder_of_modules_says_what_it_is_for() -> None:
    folders = {file.parent for room in ("pipeline", "plugins") for file in (ROOT / room).rglob("*.py")}
    silent = [folder for folder in folders if not (folder / "__init__.py").read_text().startswith('"""')]
    assert silent == []
