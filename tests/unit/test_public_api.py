"""Every public method of Kafka Streams is here under its name, or its documentation says what stands instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import riverrun
import riverrun.testing

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-kafka-streams.md").read_text()
METHODS = dict(line.split(": ") for line in Path(__file__).with_name("kafka_streams_api.txt").read_text().splitlines())
"""By class, the names of its public methods: what `javap -public` shows of Kafka Streams 4.3.1, without those of `Object`."""
INHERITED_BY = {
    "ProcessingContext": "ProcessorContext",
    "ReadOnlyKeyValueStore": "KeyValueStore",
    "ReadOnlySessionStore": "SessionStore",
    "ReadOnlyWindowStore": "WindowStore",
}
"""Interfaces of Kafka Streams that are one with another here."""
CONSTRUCTORS = {"as", "with"}
WITH_HEADERS = re.compile(r"WithHeaders(Builder)?$")
"""Stores that keep headers: the page names all of them at once."""


def is_there(cls: str, method: str) -> bool:
    """Whether a class has a method, or a field that an option sets."""
    name = INHERITED_BY.get(cls, cls)
    owner: Any = getattr(riverrun.testing, name, None) or getattr(riverrun, name, None)
    if owner is None:
        return False
    words = re.sub(r"(?<!^)([A-Z])", r"_\1", method).lower()
    fields = getattr(owner, "__dataclass_fields__", {})
    return hasattr(owner, words) or words in fields or words.removeprefix("with_") in fields


@pytest.mark.parametrize("cls", METHODS)
def test_no_method_is_missing_without_a_word(cls: str) -> None:
    methods = set(METHODS[cls].split()) - CONSTRUCTORS
    missing = {method for method in methods if not is_there(cls, method)}
    silent = {method for method in missing if not re.search(rf"\b{method}\b", PAGE)}
    assert {method for method in silent if not WITH_HEADERS.search(method)} == set()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (riverrun.Consumed[str, str], (riverrun.STRING, riverrun.STRING)),
        (riverrun.Produced[str, str], (riverrun.STRING, riverrun.STRING)),
        (riverrun.Grouped[str, str], (riverrun.STRING, riverrun.STRING)),
        (riverrun.Materialized[str, str], (riverrun.STRING, riverrun.STRING)),
        (riverrun.Joined[str, str, str], (riverrun.STRING,)),
        (riverrun.StreamJoined[str, str, str], (riverrun.STRING,)),
        (riverrun.TableJoined[str, str], ()),
        (riverrun.Repartitioned[str, str], (riverrun.STRING,)),
        (riverrun.Printed[str, str], ()),
        (riverrun.Branched[str, str], ("name",)),
        (riverrun.Serde[str], ("text", str.encode, bytes.decode)),
        (riverrun.Record[str, str], ("key", "value", 1)),
        (riverrun.FixedKeyRecord[str, str], ("key", "value", 1)),
        (riverrun.ValueAndTimestamp[str], ("value", 1)),
    ],
)
def test_what_users_make_may_have_its_types_written_out_as_in_java(option: Any, value: tuple[Any, ...]) -> None:
    assert option(*value) == option.__origin__(*value)
