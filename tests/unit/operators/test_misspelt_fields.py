"""A misspelt field of a named aggregate, or of `top`, is refused where the values' type is known, and else reported."""

from __future__ import annotations

import dataclasses
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    Avro,
    Consumed,
    Count,
    CountWindows,
    Grouped,
    JsonSchema,
    Latest,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Sum,
    TimeWindows,
    TopologyError,
    col,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.serde.api import Serde


@dataclasses.dataclass(frozen=True)
class Order:
    item: str
    amount: int


class Struct(msgspec.Struct):
    item: str
    amount: int

    @property
    def doubled(self) -> int:
        return 2 * self.amount


class Row(TypedDict):
    item: str
    amount: int


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "amount", "type": "int"}],
}
OPEN = {"type": "object", "properties": {"item": {"type": "string"}, "amount": {"type": "integer"}}}
SCHEMA = {**OPEN, "additionalProperties": False}
SERDES = {
    "Avro's schema": Avro(schema=AVRO),
    "a JSON schema": JsonSchema(schema=SCHEMA),
    "a TypedDict": JSON(Row),
    "a dataclass": JSON(Order),
    "a struct": JSON(Struct),
}
MINUTE = timedelta(minutes=1)


def grouped(serde: Serde[Any]) -> Any:
    return StreamsBuilder().stream("in", Consumed(STRING, serde)).group_by_key()


def of_rows(serde: Serde[Any]) -> Any:
    table = StreamsBuilder().table("in", Consumed(STRING, serde))
    return table.group_by(lambda key, value: (key, value), Grouped(STRING, serde))


GROUPS: dict[str, Callable[[Serde[Any]], Any]] = {
    "a stream": grouped,
    "a table": of_rows,
    "sessions": lambda serde: grouped(serde).windowed_by(SessionWindows.of(MINUTE)),
    "windows": lambda serde: grouped(serde).windowed_by(TimeWindows.of(MINUTE)),
}


@pytest.mark.parametrize("serde", SERDES.values(), ids=SERDES)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_a_field_that_values_lack_is_refused_with_the_nearest_one(
    group: Callable[[Serde[Any]], Any], serde: Serde[Any]
) -> None:
    with pytest.raises(TopologyError, match=r"total=Sum\(field='amuont'\): \w+ has no field 'amuont'") as refused:
        group(serde).aggregate(n=Count(), total=Sum("amuont"))
    assert refused.value.hint == "Did you mean 'amount'?"
    with pytest.raises(TopologyError, match=r"top\(by='amuont'\): \w+ has no field 'amuont'"):
        group(serde).top(3, by="amuont")
    group(serde).aggregate(n=Count(), total=Sum("amount"))
    group(serde).top(3, by="amount", materialized=Materialized(value_serde=JSON))


def test_windows_by_count_refuse_such_a_field_as_well() -> None:
    with pytest.raises(TopologyError, match="no field 'amuont'"):
        grouped(JSON(Order)).windowed_by(CountWindows.of(3)).aggregate(total=Sum("amuont"))


def test_a_field_without_a_near_one_is_refused_with_those_there_are() -> None:
    with pytest.raises(TopologyError, match="Order has no field 'price'") as refused:
        grouped(JSON(Order)).aggregate(total=Sum("price"))
    assert refused.value.hint == "It has: item, amount"


def test_properties_are_fields_and_single_values_have_none() -> None:
    grouped(JSON(Struct)).aggregate(total=Sum("doubled"))
    with pytest.raises(TopologyError, match="int has no field 'amount'"):
        grouped(LONG).aggregate(total=Sum("amount"))


@dataclasses.dataclass
class Priced:
    amount: int

    def __post_init__(self) -> None:
        self.doubled = 2 * self.amount


@dataclasses.dataclass
class Wrapped:
    amount: int

    def __getattr__(self, name: str) -> int:
        return len(name)


@pytest.mark.parametrize(
    ("serde", "value", "last"),
    [
        (JSON(Priced), Priced(3), 6),
        (JSON(Wrapped), Wrapped(3), 7),
        (JsonSchema(schema=OPEN), {"amount": 3, "doubled": 6}, 6),
    ],
    ids=["an attribute of __post_init__", "an attribute of __getattr__", "an open schema"],
)
def test_fields_that_a_type_does_not_show_are_not_refused(serde: Serde[Any], value: Any, last: int) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(STRING, serde)).filter(col("doubled") > 1).group_by_key()
    grouped.aggregate(last=Latest("doubled")).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, serde).pipe_input("a", value)
        assert driver.output_topic("out", STRING, JSON).read_key_values_to_list() == [("a", {"last": last})]


class Renamed(msgspec.Struct, rename="camel"):
    unit_price: int


def test_the_fields_there_are_have_the_names_by_which_they_are_read() -> None:
    grouped(JSON(Renamed)).aggregate(total=Sum("unit_price"))
    with pytest.raises(TopologyError, match="Renamed has no field 'cost'") as refused:
        grouped(JSON(Renamed)).aggregate(total=Sum("cost"))
    assert refused.value.hint == "It has: unit_price"


class Kept:
    """An aggregate of a user, whose attribute `field` is not the name of a field."""

    field = "anything"

    def initial(self) -> int:
        return 0

    def add(self, state: int, _value: Any) -> int:
        return state

    def merge(self, first: int, second: int) -> int:
        return first + second

    def result(self, state: int) -> int:
        return state


def test_aggregates_of_users_read_what_they_want() -> None:
    grouped(JSON(Order)).aggregate(kept=Kept())


def with_method(name: str, method: Any) -> Any:
    return type("Own", (Kept,), {name: method})()


@pytest.mark.parametrize(
    ("name", "method", "complaint"),
    [
        ("add", lambda _self, value: value, r"a function of \(state, value\), but <lambda> takes \(value\)"),
        ("initial", lambda _self, key: key, r"a function of no arguments, but <lambda> takes \(key\)"),
        ("merge", lambda _self, first: first, r"a function of \(first, second\), but <lambda> takes \(first\)"),
        ("result", lambda _self: 0, r"a function of \(state\), but <lambda> takes no arguments"),
        ("undo", lambda _self, value: value, r"a function of \(state, value\), but <lambda> takes \(value\)"),
    ],
)
def test_an_own_aggregate_whose_method_takes_other_arguments_is_refused(name: str, method: Any, complaint: str) -> None:
    with pytest.raises(TopologyError, match=rf"kept: Own\.{name} must be {complaint}"):
        grouped(JSON).aggregate(kept=with_method(name, method))


def lacking(field: str, values: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> list[str]:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JSON)).group_by_key().aggregate(last=Latest(field)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver, caplog.at_level(logging.WARNING):
        topic = driver.input_topic("in", STRING, JSON)
        for value in values:
            topic.pipe_input("a", value)
    return [record.getMessage() for record in caplog.records if field in record.getMessage()]


def test_a_probable_misspelling_is_reported_at_the_first_value_of_no_known_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warned = "a record lacks the field 'prcie', which an aggregate reads as null. Did you mean 'price'?"
    assert lacking("prcie", [{"price": 1}, {"price": 2}], caplog) == [warned]


def test_another_missing_field_is_reported_when_many_values_lack_it(caplog: pytest.LogCaptureFixture) -> None:
    values: list[dict[str, Any]] = [{"item": n} for n in range(99)]
    assert lacking("discount_of_members", values, caplog) == []
    warned = "the field 'discount_of_members' was missing 100 times, and aggregates have read it as null"
    assert lacking("discount_of_members", values[:2], caplog) == [warned]


def test_a_field_that_is_null_is_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    assert lacking("rebate", [{"rebate": None, "rebates": 1}], caplog) == []
