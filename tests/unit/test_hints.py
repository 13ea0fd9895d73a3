"""No hint may lead to loss where nothing is wrong: what deletes is named only where it is the answer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import riverrun

DELETES = re.compile(r"riverrun reset|--reset|\bdelete (it|the|its)\b|or start over", re.IGNORECASE)
ALLOWED = {
    "cli": "commands say what they do",
    "hosting/continuing.py": "brokers delete committed offsets, and no command does",
    "hosting/inputs.py": "no committed offsets, no state to lose; reset --from sets where to begin",
    "hosting/topic_ids.py": "a topic is gone",
    "kafka/embedded/broker.py": "the data is damaged",
    "spark/ranges.py": "records are to be processed once more, which is what a reset is for; a release comes first",
    "state/stores/buffer.py": "local state is a copy of the changelogs",
    "state/rocksdb.py": "local state is a copy of the changelogs",
    "transfers/exports.py": "files of an attempt that another one has repeated",
    "transfers/jdbc.py": "the note of another export",
    "transfers/sql_sink.py": "the note of an export of a topic that is gone",
}
"""Modules whose texts name what deletes, and why no work is lost by it."""


def test_only_known_texts_tell_users_to_delete_anything() -> None:
    root = Path(riverrun.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(map(DELETES.search, texts_of(path.read_text())))
    }
    assert {name for name in found if name not in ALLOWED and name.split("/")[0] not in ALLOWED} == set()


def texts_of(source: str) -> list[str]:
    """The texts of a module that are not docstrings."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
    ]
