"""Private parts of kafka-python: all uses are in one place, and versions without them are refused."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace

import pytest
from kafka import KafkaConsumer
from kafka.coordinator import base

from riverrun.errors import ConfigError
from riverrun.kafka import kafka_python
from riverrun.kafka.kafka_python import PRIVATE, GroupCoordinator


def test_the_private_names_that_are_used_are_those_that_are_looked_for() -> None:
    tree = ast.parse(inspect.getsource(kafka_python))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    assert used == {*PRIVATE, "_net"}


@pytest.mark.parametrize("name", PRIVATE)
def test_the_library_that_is_installed_has_them(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(base) or hasattr(base.BaseCoordinator, name)


def test_a_consumer_of_the_library_knows_its_coordinator() -> None:
    assert "self._coordinator =" in inspect.getsource(KafkaConsumer)


def test_another_version_of_the_library_is_refused_by_its_number() -> None:
    with pytest.raises(ConfigError, match=r"kafka-python 3.* has no _lock, _manager") as refused:
        GroupCoordinator(SimpleNamespace(_coordinator=SimpleNamespace(_heartbeat_enabled=True)), dict)
    assert "pip install" in (refused.value.hint or "")
