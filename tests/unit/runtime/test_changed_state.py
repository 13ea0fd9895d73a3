"""State whose values an earlier version of the code has written: read by the serde that the code has now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from riverrun import DOUBLE, INTEGER, JSON, LONG, STRING, Avro, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.errors import DeserializationError
from riverrun.testing import TopologyTestDriver
from tests.restarts import Restarts

if TYPE_CHECKING:
    from riverrun import Serde, Topology

pytestmark = pytest.mark.driver


class Visit(msgspec.Struct):
    clicks: int = 0
    page: str = ""


class Wider(msgspec.Struct):
    clicks: float = 0
    page: str | None = None


class Longer(msgspec.Struct):
    clicks: int = 0
    page: str = ""
    country: str = "?"


class Renamed(msgspec.Struct):
    visits: int = 0
    page: str = ""


class RenamedInPython(msgspec.Struct):
    visits: int = msgspec.field(name="clicks", default=0)
    page: str = ""


class Required(msgspec.Struct):
    clicks: int
    country: str


def avro(*names: str) -> dict[str, Any]:
    """A schema of visits with some of the fields."""
    fields: dict[str, dict[str, Any]] = {
        "clicks": {"type": "long", "default": 0},
        "page": {"type": "string", "default": ""},
        "country": {"type": "string", "default": "?"},
    }
    return {"type": "record", "name": "Visit", "fields": [{"name": name, **fields[name]} for name in names]}


def keeping(serde: Serde[Any], first: Any) -> Topology:
    """A topology that keeps the first value of a key, and forwards what its store has."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    kept = grouped.aggregate(lambda: first, lambda _key, _value, kept: kept, Materialized(STRING, serde, name="kept"))
    kept.to_stream().to("out", Produced(STRING, serde))
    return builder.build()


def read_later(before: Serde[Any], value: Any, now: Serde[Any], registry: str) -> Any:
    """Write a value with one version of the code, and return what the store of the next version has."""
    settings = {"url": f"mock://{registry}"}
    with TopologyTestDriver(keeping(before, value), schema_registry=settings) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=1)
        changelogs = {topic: log for topic, log in driver._topics.logs.items() if topic.endswith("changelog")}
    with TopologyTestDriver(keeping(now, None), schema_registry=settings) as driver:
        driver._topics.logs.update(changelogs)
        Restarts(driver, loses_state=True).restart()
        driver.input_topic("in", STRING, STRING).pipe_input("a", "y", timestamp=2)
        return driver.output_topic("out", STRING, now).read_value()


VISIT, LONG_VISIT = Visit(3, "/"), Longer(3, "/", "DE")
AVRO, LONG_AVRO = Avro(Visit, schema=avro("clicks", "page")), Avro(Longer, schema=avro("clicks", "page", "country"))


@pytest.mark.parametrize(
    ("before", "value", "now", "found"),
    [
        (JSON(Visit), VISIT, JSON(Longer), Longer(3, "/", "?")),
        (JSON(Longer), LONG_VISIT, JSON(Visit), VISIT),
        (JSON(Visit), VISIT, JSON(Wider), Wider(3.0, "/")),
        (JSON(Visit), VISIT, JSON(Renamed), Renamed(0, "/")),
        (JSON(Visit), VISIT, JSON(RenamedInPython), RenamedInPython(3, "/")),
        (LONG_AVRO, LONG_VISIT, AVRO, VISIT),
        (AVRO, VISIT, LONG_AVRO, Longer(3, "/", "?")),
    ],
    ids=["added", "removed", "wider", "renamed", "renamed in Python", "removed in Avro", "added in Avro"],
)
def test_state_of_an_earlier_type_is_read_as_its_serde_reads_old_records(
    before: Serde[Any], value: Any, now: Serde[Any], found: Any, unique: str
) -> None:
    assert read_later(before, value, now, unique) == found


@pytest.mark.parametrize(
    ("before", "value", "now"),
    [
        (JSON(Visit), Visit(3), JSON(Required)),
        (INTEGER, 3, LONG),
        (LONG, 3, JSON),
        (JSON(Visit), Visit(3), Avro(Visit)),
    ],
    ids=["a field without a default", "another size", "another format", "JSON as Avro"],
)
def test_state_that_the_serde_cannot_read_is_an_error_that_names_the_store(
    before: Serde[Any], value: Any, now: Serde[Any], unique: str
) -> None:
    with pytest.raises(DeserializationError, match=r"Store kept cannot read the .* of key b'a': serde"):
        read_later(before, value, now, unique)


def test_bytes_of_equal_length_are_read_as_the_wrong_number(unique: str) -> None:
    assert read_later(LONG, 3, DOUBLE, unique) != 3
