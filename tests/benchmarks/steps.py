"""Topologies of one kind of operator each, above a source of texts: what a task does with a record there, and no more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Branched,
    Consumed,
    Grouped,
    Materialized,
    Processor,
    Produced,
    SessionWindows,
    TimeWindows,
)

if TYPE_CHECKING:
    from riverrun import KGroupedStream, KStream, ProcessorContext, Record, StreamsBuilder, Topology

VIEWS, USERS = "views", "users"
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def nothing(builder: StreamsBuilder) -> Topology:
    _views(builder)
    return builder.build()


def filtered(builder: StreamsBuilder) -> Topology:
    _views(builder).filter(lambda _user, _view: True)
    return builder.build()


def mapped(builder: StreamsBuilder) -> Topology:
    _views(builder).map_values(lambda view: view)
    return builder.build()


def five_steps(builder: StreamsBuilder) -> Topology:
    stream = _views(builder).filter(lambda _user, _view: True).map_values(lambda view: view)
    stream.map(lambda user, view: (user, view)).peek(lambda _user, _view: None).filter(lambda _user, _view: True)
    return builder.build()


def branched(builder: StreamsBuilder) -> Topology:
    ways = _views(builder).split().branch(lambda _user, _view: False, Branched("one"))
    ways.branch(lambda _user, _view: True, Branched("two")).default_branch(Branched("three"))
    return builder.build()


def sunk(builder: StreamsBuilder) -> Topology:
    _views(builder).to("out", Produced(STRING, BYTES))
    return builder.build()


def processed(builder: StreamsBuilder) -> Topology:
    """A user's processor above a filter and a sink."""
    _views(builder).process(Same).filter(lambda _user, _view: True).to("out", Produced(STRING, BYTES))
    return builder.build()


def joined(builder: StreamsBuilder) -> Topology:
    users = builder.table(USERS, Consumed(STRING, STRING))
    _views(builder).join(users, lambda view, _user: view)
    return builder.build()


def counted(builder: StreamsBuilder) -> Topology:
    _grouped(builder).count(Materialized(name="counts"))
    return builder.build()


def reduced(builder: StreamsBuilder) -> Topology:
    _grouped(builder).aggregate(
        lambda: 0, lambda _user, view, n: n + len(view), Materialized(STRING, LONG, name="sums")
    )
    return builder.build()


def gathered(builder: StreamsBuilder) -> Topology:
    """An aggregate that can be changed: there are its bytes, and each record reads and writes them."""
    last = Materialized(STRING, JSON(list[int]), name="last")
    _grouped(builder).aggregate(list, lambda _user, view, known: [*known[-2:], len(view)], last)
    return builder.build()


def counted_in_windows(builder: StreamsBuilder) -> Topology:
    windows = TimeWindows.of_size_with_no_grace(_MINUTE)
    _grouped(builder).windowed_by(windows).count(Materialized(name="counts"))
    return builder.build()


def counted_in_sessions(builder: StreamsBuilder) -> Topology:
    windows = SessionWindows.of_inactivity_gap_with_no_grace(_SECOND)
    _grouped(builder).windowed_by(windows).count(Materialized(name="counts"))
    return builder.build()


class Same(Processor[str, bytes]):
    """Forwards each record."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, bytes]) -> None:
        self._context.forward(record)


def _views(builder: StreamsBuilder) -> KStream[str, bytes]:
    return builder.stream(VIEWS, Consumed(STRING, BYTES))


def _grouped(builder: StreamsBuilder) -> KGroupedStream[str, bytes]:
    return _views(builder).group_by_key(Grouped(STRING, BYTES))
