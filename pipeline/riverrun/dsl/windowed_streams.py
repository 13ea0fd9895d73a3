"""Grouped streams in windows of time and in sessions, to be aggregated into tables of keys and windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import FLAG, NUMBER, function
from riverrun.dsl.grouping import (
    Late,
    SessionAggregator,
    burn_store_name,
    reducing,
    session_aggregate,
    session_reducer,
    window_aggregate,
)
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import EmitStrategy, Materialized, name_of, with_value_serde
from riverrun.dsl.ranking import Ranking
from riverrun.errors import TopologyError
from riverrun.operators.aggregations import COUNT, Aggregator
from riverrun.processor.aggregates import FIELD
from riverrun.serde.serdes import LONG
from riverrun.windows import SessionWindows, SlidingWindows, UnlimitedWindows, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouping import FixedWindows, Grouping
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Named
    from riverrun.processor.aggregates import AggregateFunction, Field

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")

_SESSION_COUNT = SessionAggregator(COUNT, lambda _key, one, two: one + two)


@dataclass(frozen=True, slots=True)
class TimeWindowedKStream(Generic[K, V]):
    """A grouped stream in windows (`org.apache.kafka.streams.kstream.TimeWindowedKStream`).

    A window accepts records until stream time has passed its end by the grace period; later records count as dropped.
    Records with a null key are not aggregated; null values are, except in sliding windows. Aggregations raise
    `TopologyError` if a serde is missing, or if the store keeps windows for less than size plus grace.
    """

    _grouping: Grouping[K, V]
    _windows: FixedWindows
    _emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
    _late: Late | None = None

    @checked()
    def emit_strategy(self, emit_strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """Return these windows with a strategy: forward at every update, or once after closing.

        Raises:
            TopologyError: If windows without end should forward when they close.
        """
        if isinstance(self._windows, UnlimitedWindows) and emit_strategy is EmitStrategy.ON_WINDOW_CLOSE:
            raise TopologyError("ON_WINDOW_CLOSE emit strategy cannot be used for UnlimitedWindows: they never close")
        return replace(self, _emit=emit_strategy)

    @checked(consumer=function("stream"))
    def late(
        self, consumer: Callable[[KStream[K, V]], object], *, named: Named | None = None
    ) -> TimeWindowedKStream[K, V]:
        """Return these windows with a stream of late records: those that a window refuses because it has closed.

        Keys, values, times and headers are as they came. A record that is late for several windows is in the stream once,
        though it counts as dropped for each of them. (Flink's side output of late data.)

        >>> from datetime import timedelta
        >>> from riverrun import STRING, Consumed, StreamsBuilder, TimeWindows
        >>> from riverrun.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
        >>> minutes = clicks.windowed_by(TimeWindows.of(timedelta(minutes=1))).late(lambda late: late.to("late"))
        >>> _ = minutes.count()
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for value, second in [("a", 0), ("b", 60), ("c", 59)]:
        ...         driver.input_topic("in", STRING, STRING).pipe_input("k", value, timestamp=second * 1000)
        ...     driver.output_topic("late", STRING, STRING).read_key_values_to_list()
        [('k', 'c')]

        Args:
            consumer: Called with the stream, once for each aggregation of these windows.
            named: Name of the stream's node.

        Raises:
            TopologyError: If the windows never close.
        """
        if isinstance(self._windows, UnlimitedWindows):
            raise TopologyError("late() cannot be used for UnlimitedWindows: they never close")
        return replace(self, _late=Late(consumer, name_of(named)))

    @checked()
    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records per key and window."""
        if not isinstance(self._windows, SlidingWindows):
            burn_store_name(self._grouping.plan, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", COUNT, (), with_value_serde(materialized, LONG), named)

    @checked()
    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine values per key and window: `reducer(aggregate, value)`."""
        options = with_value_serde(materialized, self._grouping.value_serde)
        return self._aggregate("KSTREAM-REDUCE-", reducing(reducer), (reducer,), options, named)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO | None],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, dict[str, Any]] | None = None,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], dict[str, Any]]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, VO],
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], VO]: ...

    @checked()
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        materialized: Materialized[K, Any] | None = None,
        *,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], Any]:
        """Combine values per key and window: `aggregator(key, value, aggregate)`, from `initializer()`.

        An aggregator that returns None deletes the window.

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. The store has a
        row of their states. `Materialized(value_serde=JSON(Type))` makes the rows objects of a type with these fields.
        """
        prefix, functions = "KSTREAM-AGGREGATE-", (initializer, aggregator)
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized, self._grouping.value_serde)
            table = self._aggregate(prefix, how.aggregator(), how.functions, how.stored(materialized), named)
            return how.results(table, materialized, named)
        unnamed(*functions)
        return self._aggregate(
            prefix, Aggregator(initializer, aggregator), functions, materialized or Materialized(), named
        )

    @checked(n=NUMBER, by=FIELD, largest=FLAG)
    def top(
        self,
        n: int,
        by: Field = None,
        *,
        largest: bool = True,
        materialized: Materialized[K, list[V]] | None = None,
        named: Named | None = None,
    ) -> KTable[Windowed[K], list[V]]:
        """List the `n` values per key and window with the largest ranks, the largest one first.

        Of equal ranks, the value that arrived first is ahead. Values without a rank (None) are left out.

        Arguments and errors are those of `KGroupedStream.top`.
        """
        how = Ranking.of(n, by, largest=largest, values=self._grouping.value_serde)
        options = how.stored(materialized, self._grouping.value_serde)
        return self._aggregate("KSTREAM-AGGREGATE-", how.of_stream, how.functions, options, named)

    def _aggregate(
        self,
        prefix: str,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[Windowed[K], Any]:
        operator = window_aggregate(self._windows, aggregator)
        return self._grouping.aggregate_windows(
            self._windows,
            self._emit,
            prefix=prefix,
            operator=operator,
            functions=functions,
            options=options,
            named=named,
            late=self._late,
        )


@dataclass(frozen=True, slots=True)
class SessionWindowedKStream(Generic[K, V]):
    """A grouped stream in sessions (`org.apache.kafka.streams.kstream.SessionWindowedKStream`).

    A record between two sessions merges them: a tombstone deletes each old session, and the merged one appears. A
    record whose session ended more than gap plus grace before stream time counts as dropped. Records with a null key
    are not aggregated; null values are. Aggregations raise `TopologyError` if a serde is missing, or if the store keeps
    sessions for less than gap plus grace.
    """

    _grouping: Grouping[K, V]
    _windows: SessionWindows
    _emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
    _late: Late | None = None

    @checked()
    def emit_strategy(self, emit_strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """Return these sessions with a strategy: forward at every update, or once after closing."""
        return replace(self, _emit=emit_strategy)

    @checked(consumer=function("stream"))
    def late(
        self, consumer: Callable[[KStream[K, V]], object], *, named: Named | None = None
    ) -> SessionWindowedKStream[K, V]:
        """Return these sessions with a stream of late records: those whose session has closed.

        Args:
            consumer: Called with the stream, once for each aggregation of these sessions. Keys, values, times and headers are
                as they came.
            named: Name of the stream's node.
        """
        return replace(self, _late=Late(consumer, name_of(named)))

    @checked()
    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records per key and session."""
        burn_store_name(self._grouping.plan, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", _SESSION_COUNT, (), with_value_serde(materialized, LONG), named)

    @checked()
    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine values per key and session: `reducer(aggregate, value)`, which also merges sessions."""
        options = with_value_serde(materialized, self._grouping.value_serde)
        return self._aggregate("KSTREAM-REDUCE-", session_reducer(reducer), (reducer,), options, named)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO | None],
        merger: Callable[[K, VO, VO], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, dict[str, Any]] | None = None,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], dict[str, Any]]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, VO],
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], VO]: ...

    @checked()
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        merger: Any = None,
        materialized: Materialized[K, Any] | None = None,
        *,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], Any]:
        """Combine values per key and session.

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. The store has a
        row of their states. `Materialized(value_serde=JSON(Type))` makes the rows objects of a type with these fields.

        Args:
            initializer: Returns the initial aggregate.
            aggregator: `(key, value, aggregate) -> aggregate`; None deletes the session.
            merger: `(key, aggregate, other_aggregate) -> aggregate`: merges two sessions that a record connects.
            materialized: How to store the sessions.
            named: Name of the node.
            aggregates: Named aggregates, in place of the three functions.
        """
        prefix, functions = "KSTREAM-AGGREGATE-", (initializer, aggregator, merger)
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized, self._grouping.value_serde)
            both = SessionAggregator(how.aggregator(), how.merger())
            table = self._aggregate(prefix, both, how.functions, how.stored(materialized), named)
            return how.results(table, materialized, named)
        unnamed(*functions)
        both = SessionAggregator(Aggregator(initializer, aggregator), merger)
        return self._aggregate(prefix, both, functions, materialized or Materialized(), named)

    @checked(n=NUMBER, by=FIELD, largest=FLAG)
    def top(
        self,
        n: int,
        by: Field = None,
        *,
        largest: bool = True,
        materialized: Materialized[K, list[V]] | None = None,
        named: Named | None = None,
    ) -> KTable[Windowed[K], list[V]]:
        """List the `n` values per key and session with the largest ranks, the largest one first.

        Of equal ranks, the value that arrived first is ahead, and of merged sessions that of the first one. Values without a
        rank (None) are left out.

        Arguments and errors are those of `KGroupedStream.top`.
        """
        how = Ranking.of(n, by, largest=largest, values=self._grouping.value_serde)
        options = how.stored(materialized, self._grouping.value_serde)
        return self._aggregate(
            "KSTREAM-AGGREGATE-", SessionAggregator(how.of_stream, how.merged), how.functions, options, named
        )

    def _aggregate(
        self,
        prefix: str,
        aggregator: SessionAggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[Windowed[K], Any]:
        operator = session_aggregate(self._windows, aggregator)
        return self._grouping.aggregate_windows(
            self._windows,
            self._emit,
            prefix=prefix,
            operator=operator,
            functions=functions,
            options=options,
            named=named,
            late=self._late,
        )
