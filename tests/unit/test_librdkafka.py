"""Names of confluent-kafka that are not public: all of them in one place."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from packaging.requirements import Requirement

import riverrun.kafka
from riverrun.errors import ConfigError
from riverrun.kafka import librdkafka
from tests.waiting import DEADLINE_S

SOURCES = sorted(Path(riverrun.kafka.__file__).parent.rglob("*.py"))


def test_the_library_that_is_installed_has_the_error_codes_that_are_used() -> None:
    named = re.findall(r'_code\("(\w+)"\)', inspect.getsource(librdkafka))
    assert len(named) == len(set(named))
    own = {
        name: value
        for name, value in vars(librdkafka).items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    assert set(own.values()) == {getattr(KafkaError, name) for name in named}
    used = set(re.findall(r"librdkafka\.([A-Z_]+)", "".join(path.read_text() for path in SOURCES)))
    assert used <= own.keys()


def test_another_version_of_the_library_is_refused_by_its_number() -> None:
    with pytest.raises(
        ConfigError, match=rf"confluent-kafka {version('confluent-kafka')} .* no error code _GONE"
    ) as refused:
        librdkafka._code("_GONE")
    assert f"pip install '{librdkafka.SUPPORTED}'" in (refused.value.hint or "")
    assert Requirement(librdkafka.SUPPORTED) in map(Requirement, requires("riverrun") or ())


def test_no_module_uses_private_names_of_client_libraries() -> None:
    found = {path.name for path in SOURCES if private_names(path)}
    assert not found, "those of confluent-kafka are texts in librdkafka.py"


def private_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    foreign = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]
    of_others = {node.attr for node in foreign if re.match(r"_[A-Za-z]", node.attr)}
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return of_others - own


def test_a_client_that_is_collected_when_the_interpreter_ends_holds_nothing_up() -> None:
    code = (
        "from riverrun.kafka.librdkafka import end_in_background\n"
        "class Reader:\n"
        "    def __del__(self): end_in_background(print, 'reader')\n"
        "kept = Reader()\n"
        "kept.itself = kept\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
