"""`KGroupedStream` and windowed streams: a stream grouped by key, to be aggregated into a table.

`Grouping` writes their steps into the builder's plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import FLAG, NUMBER, function
from riverrun.dsl.cogroup import CogroupedKStream, Cogrouping
from riverrun.dsl.grouping import (
    Late,
    SessionAggregator,
    burn_store_name,
    fixed,
    session_aggregate,
    session_reducer,
    window_aggregate,
)
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import EmitStrategy, Materialized, name_of, with_value_serde
from riverrun.dsl.ranking import Ranking
from riverrun.errors import TopologyError
from riverrun.operators.aggregations import COUNT, Aggregator, StreamAggregate
from riverrun.processor.aggregates import FIELD
from riverrun.serde.serdes import JSON, LONG
from riverrun.windows import (
    CountWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
    Windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouping import FixedWindows, Grouping
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Named
    from riverrun.dsl.plan import TableNode
    from riverrun.processor.aggregates import AggregateFunction, Field
    from riverrun.processor.operator import Operator
    from riverrun.state.api import StoreBuilder

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")


@dataclass(frozen=True, slots=True)
class KGroupedStream(Generic[K, V]):
    """A stream grouped by key, to be aggregated (`org.apache.kafka.streams.kstream.KGroupedStream`).

    Records with a null key or a null value are not aggregated and count as dropped. Aggregations raise `TopologyError`
    if a serde is missing.

    >>> from riverrun import STRING, Consumed, StreamsBuilder
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", Consumed(STRING, STRING)).group_by_key().count(Materialized(name="counts"))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "x"), ("a", "y")])
    ...     driver.get_state_store("counts").get("a").value
    2
    """

    _grouping: Grouping[K, V]

    @checked()
    def count(self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None) -> KTable[K, int]:
        """Count the records per key."""
        burn_store_name(self._grouping.plan, materialized)
        return self._aggregate("KSTREAM-AGGREGATE-", COUNT, (), with_value_serde(materialized, LONG), named)

    @checked()
    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V]:
        """Combine values per key: `reducer(aggregate, value)`. The first value is the initial aggregate."""
        options = with_value_serde(materialized, self._grouping.value_serde)
        return self._aggregate("KSTREAM-REDUCE-", _reducing(reducer), (reducer,), options, named)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO | None],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, VO]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, dict[str, Any]] | None = None,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[K, dict[str, Any]]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, VO],
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[K, VO]: ...

    @checked()
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        materialized: Materialized[K, Any] | None = None,
        *,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[K, Any]:
        """Combine values per key: `aggregator(key, value, aggregate)`, starting from `initializer()`.

        An aggregator that returns None deletes the key.

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. The store has a
        row of their states. `Materialized(value_serde=JSON(Type))` makes the rows objects of a type with these fields.
        """
        prefix, functions = "KSTREAM-AGGREGATE-", (initializer, aggregator)
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized)
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
    ) -> KTable[K, list[V]]:
        """List the `n` values per key with the largest ranks, the largest one first.

        Of equal ranks, the value that arrived first is ahead. Values without a rank (None) are left out. Each record forwards
        its key's list, changed or not.

        >>> from riverrun import JSON, STRING, Consumed, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> bids = builder.stream("in", Consumed(STRING, JSON(int))).group_by_key()
        >>> bids.top(2).to_stream().to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("in", STRING, JSON(int)).pipe_key_value_list([("a", 5), ("a", 9), ("a", 7)])
        ...     driver.output_topic("out", STRING, JSON).read_key_values_to_list()
        [('a', [5]), ('a', [9, 5]), ('a', [9, 7])]

        Args:
            n: How many values, at least 1.
            by: Returns the rank of a value, or is the name of its field. Default: the value itself.
            largest: Whether large ranks come first; False for the smallest ones.
            materialized: How to store the lists. Their serde is a `JSON` of lists if the values have a known type.
            named: Name of the node.

        Raises:
            TopologyError: If `n` is below 1, or the serde of the lists is unknown.
        """
        how = Ranking.of(n, by, largest=largest)
        options = how.stored(materialized, self._grouping.value_serde)
        return self._aggregate("KSTREAM-AGGREGATE-", how.of_stream, how.functions, options, named)

    @checked()
    def cogroup(self, aggregator: Callable[[K, V, VO], VO | None]) -> CogroupedKStream[K, VO]:
        """Aggregate this stream together with others into one table.

        Args:
            aggregator: `(key, value, aggregate) -> aggregate` for the records of this stream; None deletes the key.
        """
        return CogroupedKStream(Cogrouping(((self._grouping, aggregator),)))

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | Windows
    ) -> TimeWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: CountWindows) -> CountWindowedKStream[K, V]: ...

    @checked()
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | SessionWindows | CountWindows | Windows
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V] | CountWindowedKStream[K, V]:
        """Aggregate per key and window."""
        if isinstance(windows, CountWindows):
            return CountWindowedKStream(self._grouping, windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self._grouping, windows)
        return TimeWindowedKStream(self._grouping, fixed(windows))

    def _aggregate(
        self,
        prefix: str,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[K, Any]:
        def operator(store: StoreBuilder, node: TableNode) -> Operator:
            return StreamAggregate(store.name, aggregator, send_old_values=node.sends_old_values)

        return self._grouping.aggregate(prefix, operator, functions, options, named)


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
            message = "ON_WINDOW_CLOSE emit strategy cannot be used for UnlimitedWindows: they never close"
            raise TopologyError(message)
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
            message = "late() cannot be used for UnlimitedWindows: they never close"
            raise TopologyError(message)
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
        return self._aggregate("KSTREAM-REDUCE-", _reducing(reducer), (reducer,), options, named)

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
            how = NamedAggregates.of(aggregates, functions, materialized)
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

        Args:
            n: How many values, at least 1.
            by: Returns the rank of a value, or is the name of its field. Default: the value itself.
            largest: Whether large ranks come first; False for the smallest ones.
            materialized: How to store the lists. Their serde is a `JSON` of lists if the values have a known type.
            named: Name of the node.

        Raises:
            TopologyError: If `n` is below 1, or the serde of the lists is unknown.
        """
        how = Ranking.of(n, by, largest=largest)
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
        return self._aggregate("KSTREAM-AGGREGATE-", SESSION_COUNT, (), with_value_serde(materialized, LONG), named)

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
            how = NamedAggregates.of(aggregates, functions, materialized)
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

        Args:
            n: How many values, at least 1.
            by: Returns the rank of a value, or is the name of its field. Default: the value itself.
            largest: Whether large ranks come first; False for the smallest ones.
            materialized: How to store the lists. Their serde is a `JSON` of lists if the values have a known type.
            named: Name of the node.

        Raises:
            TopologyError: If `n` is below 1, or the serde of the lists is unknown.
        """
        how = Ranking.of(n, by, largest=largest)
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


@dataclass(frozen=True, slots=True)
class CountWindowedKStream(Generic[K, V]):
    """A grouped stream in windows by count; a full window has a result, and one that is never full has none.

    Records with a null key or a null value are in no window, and count as dropped. The windows of a key are those of its
    partition's records in their order. Aggregations raise `TopologyError` if a serde is missing.

    >>> from riverrun import JSON, STRING, Consumed, CountWindows, Mean, Produced, StreamsBuilder
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> readings = builder.stream("in", Consumed(STRING, JSON(int))).group_by_key()
    >>> readings.windowed_by(CountWindows.of(3).advance_by(1)).aggregate(mean=Mean()).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", STRING, JSON(int)).pipe_key_value_list([("a", n) for n in (1, 2, 3, 7)])
    ...     driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    [('a', {'mean': 2.0}), ('a', {'mean': 4.0})]
    """

    _grouping: Grouping[K, V]
    _windows: CountWindows

    @checked()
    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KStream[K, V]:
        """Combine the values of each window: `reducer(aggregate, value)`. The first value is the initial aggregate."""
        options = with_value_serde(materialized, self._grouping.value_serde)
        return self._aggregate(_reducing(reducer), (reducer,), options, named)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO | None],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KStream[K, VO]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, dict[str, Any]] | None = None,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KStream[K, dict[str, Any]]: ...

    @overload
    def aggregate(
        self, *, materialized: Materialized[K, VO], named: Named | None = None, **aggregates: AggregateFunction
    ) -> KStream[K, VO]: ...

    @checked()
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        materialized: Materialized[K, Any] | None = None,
        *,
        named: Named | None = None,
        **aggregates: AggregateFunction,
    ) -> KStream[K, Any]:
        """Combine the values of each window: `aggregator(key, value, aggregate)`, from `initializer()`.

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. The stream has
        the results of full windows, with the serde of `materialized`.
        """
        functions = (initializer, aggregator)
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized)
            return self._grouping.count_windows(
                self._windows,
                how.aggregator(),
                how.functions,
                how.stored(materialized),
                named,
                result=how.result,
                results=(materialized and materialized.value_serde) or JSON,
            )
        unnamed(*functions)
        return self._aggregate(Aggregator(initializer, aggregator), functions, materialized or Materialized(), named)

    def _aggregate(
        self, aggregator: Aggregator, functions: tuple[Any, ...], options: Materialized[K, Any], named: Named | None
    ) -> KStream[K, Any]:
        return self._grouping.count_windows(
            self._windows, aggregator, functions, options, named, result=_itself, results=options.value_serde
        )


SESSION_COUNT = SessionAggregator(COUNT, lambda _key, one, two: one + two)


def _reducing(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    return Aggregator(None, lambda _key, value, aggregate: reducer(aggregate, value))


def _itself(aggregate: Any) -> Any:
    return aggregate
