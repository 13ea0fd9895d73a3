"""The topologies of Bench.java, as `millrace worker` runs them. Topics are those of the run, given in its environment."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from pipeline import JSON, LONG, STRING, Consumed, Grouped, Materialized, Produced, TimeWindows, windowed

if TYPE_CHECKING:
    from pipeline import KStream, StreamsBuilder, Topology

MINUTE = timedelta(minutes=1)


class View(msgspec.Struct):
    """One record of the input."""

    id: int
    user: str
    page: str
    millis: int
    ok: bool


class Slow(msgspec.Struct):
    """What the stateless topologies make of one."""

    page: str
    seconds: int
    user: str


def windowed_count(builder: StreamsBuilder) -> Topology:
    counts = (
        _views(builder)
        .group_by_key(Grouped(STRING, JSON(View)))
        .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
        .count(Materialized("counts"))
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(windowed(STRING, MINUTE), LONG))
    return builder.build()


def stateless(builder: StreamsBuilder) -> Topology:
    (
        _views(builder)
        .filter(lambda _user, view: view.ok)
        .map_values(lambda view: Slow(view.page, view.millis // 1000, view.user))
        .to(os.environ["BENCH_OUTPUT"], Produced(STRING, JSON(Slow)))
    )
    return builder.build()


def _views(builder: StreamsBuilder) -> KStream[str, View]:
    return builder.stream(os.environ["BENCH_INPUT"], Consumed(STRING, JSON(View)))
