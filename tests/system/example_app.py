"""Two versions of a small application, for tests of releases: sums per user; version 1 forgets negative amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder

if TYPE_CHECKING:
    from pipeline import Topology

PREFIX = "example"


def build(builder: StreamsBuilder) -> Topology:
    return _build(builder, lambda value: max(0, value))


def build_v2(builder: StreamsBuilder) -> Topology:
    return _build(builder, lambda value: value)


def build_choosing(builder: StreamsBuilder) -> Topology:
    payments = builder.stream(f"{PREFIX}.payments", Consumed(STRING, LONG))
    payments.to(lambda _key, _value, _time: f"{PREFIX}.sums", Produced(STRING, LONG))
    return builder.build()


def expectations() -> list[Any]:
    import great_expectations.expectations as gxe  # noqa: PLC0415 - seconds to import

    return [
        gxe.ExpectColumnValuesToBeBetween(column="value", max_value=1000, severity="critical"),
        gxe.ExpectColumnValuesToBeInSet(column="change", value_set=["same"], mostly=1.0, severity="warning"),
    ]


def _build(builder: StreamsBuilder, amount: Any) -> Topology:
    sums = (
        builder.stream(f"{PREFIX}.payments", Consumed(STRING, LONG))
        .map_values(amount)
        .group_by(lambda key, _value: key.split("/")[0], Grouped(STRING, LONG))
        .reduce(lambda total, value: total + value, Materialized("sums", STRING, LONG))
    )
    sums.to_stream().to(f"{PREFIX}.sums", Produced(STRING, LONG))
    return builder.build()
