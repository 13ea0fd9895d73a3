"""Versions of a small application, for tests of releases: receipts, and sums per user; version 1 forgets negative amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.quality import Expectations

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

PREFIX = "example"


def build(builder: StreamsBuilder) -> Topology:
    return _build(builder, lambda value: max(0, value))


def build_v2(builder: StreamsBuilder) -> Topology:
    return _build(builder, lambda value: value)


def build_in_thousandths(builder: StreamsBuilder) -> Topology:
    """Version 1 with amounts that no expectation allows."""
    return _build(builder, lambda value: 1000 * max(0, value))


def build_failing(builder: StreamsBuilder) -> Topology:
    """Version 1, which fails at payments of 7."""
    return _build(builder, lambda value: max(0, value) + 0 // (value - 7))


def build_owing(builder: StreamsBuilder) -> Topology:
    """Sums of what is owed besides: version 1 with a table of its own, from a topic that version 1 does not read."""
    owed = builder.table(f"{PREFIX}.owed", Consumed(STRING, LONG), Materialized(name="owed"))
    return _build(builder, lambda value: max(0, value), lambda stream: stream.left_join(owed, _with_owed))


def build_more(builder: StreamsBuilder) -> Topology:
    """Version 2 with another log and another table."""
    paid = builder.stream(f"{PREFIX}.payments", Consumed(STRING, LONG)).select_key(_user)
    paid.to(f"{PREFIX}.audit", Produced(STRING, LONG))
    paid.group_by_key(Grouped(STRING, LONG)).count(Materialized(name="counts")).to_stream().to(
        f"{PREFIX}.counts", Produced(STRING, LONG)
    )
    sums = paid.group_by_key(Grouped(STRING, LONG)).reduce(
        lambda total, value: total + value, Materialized(STRING, LONG, name="sums")
    )
    sums.to_stream().to(f"{PREFIX}.sums", Produced(STRING, LONG))
    return builder.build()


def build_choosing(builder: StreamsBuilder) -> Topology:
    payments = builder.stream(f"{PREFIX}.payments", Consumed(STRING, LONG))
    payments.to(lambda _key, _value, _time: f"{PREFIX}.sums", Produced(STRING, LONG))
    return builder.build()


def expectations() -> dict[str, Expectations]:
    import great_expectations.expectations as gxe  # noqa: PLC0415 - seconds to import

    table = [gxe.ExpectColumnValuesToBeBetween(column="value", max_value=1000, severity="critical")]
    difference = [
        gxe.ExpectColumnValuesToBeInSet(column="change", value_set=["same", "changed"], severity="critical"),
        gxe.ExpectColumnPairValuesToBeEqual(column_A="old", column_B="new", severity="warning"),
    ]
    return {f"{PREFIX}.sums": Expectations(table, difference)}


def _user(key: str, _value: int) -> str:
    return key.partition("/")[0]


def _with_owed(value: int, owed: int | None) -> int:
    return value - (owed or 0)


def _build(builder: StreamsBuilder, amount: Any, joined: Callable[[Any], Any] = lambda stream: stream) -> Topology:
    paid = joined(builder.stream(f"{PREFIX}.payments", Consumed(STRING, LONG))).map_values(amount)
    paid.select_key(_user).to(f"{PREFIX}.receipts", Produced(STRING, LONG))
    sums = paid.group_by(_user, Grouped(STRING, LONG)).reduce(
        lambda total, value: total + value, Materialized(STRING, LONG, name="sums")
    )
    sums.to_stream().to(f"{PREFIX}.sums", Produced(STRING, LONG))
    return builder.build()
