"""Keys are never written with the latest version of a subject: rows are found by the bytes of their keys."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Avro,
    ConfigError,
    Consumed,
    Grouped,
    JoinWindows,
    JsonSchema,
    Materialized,
    Produced,
    Repartitioned,
    Stores,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

LATEST = {"auto.register.schemas": False, "use.latest.version": True}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}


def _stream(builder: StreamsBuilder, keys: Any) -> Any:
    return builder.stream("in", Consumed(keys, STRING))


def _table(builder: StreamsBuilder, keys: Any) -> Any:
    return builder.table("in", Consumed(keys, STRING), Materialized(name="table"))


def _joined(builder: StreamsBuilder, keys: Any) -> None:
    other = builder.stream("other", Consumed(keys, STRING))
    _stream(builder, keys).join(other, lambda one, two: one + two, windows=JoinWindows(10, 10, 5))


def _with_a_store(builder: StreamsBuilder, keys: Any) -> None:
    builder.add_state_store(Stores.key_value_store("own", keys, STRING))


def _by_foreign_key(builder: StreamsBuilder, keys: Any) -> None:
    left = builder.table("in", Consumed(STRING, STRING), Materialized(name="left"))
    right = builder.table("right", Consumed(keys, STRING))
    left.join(right, lambda one, two: one + two, foreign_key_extractor=lambda value: {"id": value})


WRITTEN: dict[str, Callable[[StreamsBuilder, Any], Any]] = {
    "a table": _table,
    "a global table": lambda b, keys: b.global_table("in", Consumed(keys, STRING), Materialized(name="global")),
    "a repartition": lambda b, keys: (
        _stream(b, STRING).select_key(lambda k, _: k).repartition(Repartitioned(key_serde=keys, value_serde=STRING))
    ),
    "a count": lambda b, keys: _stream(b, keys).group_by_key(Grouped(keys, STRING)).count(),
    "a count of other keys": lambda b, keys: (
        _stream(b, STRING).group_by(lambda _, v: {"id": v}, Grouped(keys, STRING)).count()
    ),
    "windows": lambda b, keys: _stream(b, keys).group_by_key().windowed_by(TimeWindows(10, 10, 0)).count(),
    "a join of streams": _joined,
    "a foreign key": _by_foreign_key,
    "a store": _with_a_store,
    "an output": lambda b, keys: _stream(b, keys).to("out", Produced(keys, STRING)),
}
READ: dict[str, Callable[[StreamsBuilder, Any], Any]] = {
    "a stream": lambda b, keys: _stream(b, keys).map(lambda _, v: (v, v)).to("out", Produced(STRING, STRING)),
    "values": lambda b, keys: _stream(b, STRING).to("out", Produced(STRING, keys)),
}


def _opened(kind: Callable[[StreamsBuilder, Any], Any], keys: Any, registry: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    kind(builder, keys)
    TopologyTestDriver(builder.build(), schema_registry={"url": f"mock://{uuid.uuid4()}", **registry}).close()


@pytest.mark.parametrize("kind", WRITTEN)
def test_keys_that_would_be_written_with_the_latest_version_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("(use.latest.version)")) as refused:
        _opened(WRITTEN[kind], Avro(schema=KEY, config=LATEST), {})
    assert "to the serde of the keys" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match="would write keys of"):
        _opened(WRITTEN[kind], JsonSchema(schema={"title": "Key", **KEY}), LATEST)


@pytest.mark.parametrize("kind", WRITTEN)
def test_keys_of_one_schema_go_with_values_of_the_latest(kind: str) -> None:
    _opened(WRITTEN[kind], Avro(schema=KEY, config={"use.latest.version": False}), LATEST)


@pytest.mark.parametrize("kind", READ)
def test_the_latest_version_is_fine_where_no_key_is_written(kind: str) -> None:
    _opened(READ[kind], Avro(schema=KEY, config=LATEST), {})
