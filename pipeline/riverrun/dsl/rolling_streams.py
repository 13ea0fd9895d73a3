"""Grouped streams in rolling windows: each record has a result of its key's records of the time before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import FLAG, NUMBER, function
from riverrun.dsl.grouping import Late, reducing
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import Materialized, name_of, with_value_serde
from riverrun.dsl.ranking import Ranking
from riverrun.operators.aggregations import Aggregator
from riverrun.operators.rolling import folded
from riverrun.processor.aggregates import FIELD
from riverrun.serde.serdes import JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.dsl.grouping import Grouping
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.options import Named
    from riverrun.operators.rolling import OfWindow
    from riverrun.processor.aggregates import AggregateFunction, Field
    from riverrun.records import ValueAndTimestamp
    from riverrun.windows import RollingWindows

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")


@dataclass(frozen=True, slots=True)
class RollingKStream(Generic[K, V]):
    """A grouped stream in rolling windows; each record has a result, with its own key, time and headers.

    The records of a window are in order of event time, and of arrival at equal times; the last one is the record itself.
    A record that comes late, but within the grace, has a result, and is in the windows of the records that follow.
    Results before stay as they are. Null keys and null values are dropped, and count as dropped, as late records do.
    A result of None is not forwarded. Operations raise `TopologyError` if a serde is missing.

    >>> from datetime import timedelta
    >>> from riverrun import JSON, STRING, Consumed, Count, RollingWindows, StreamsBuilder, Sum
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> payments = builder.stream("in", Consumed(STRING, JSON(int))).group_by_key()
    >>> payments.windowed_by(RollingWindows.of(timedelta(minutes=10))).aggregate(n=Count(), total=Sum()).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     for minute, amount in [(0, 5), (9, 7), (12, 1)]:
    ...         driver.input_topic("in", STRING, JSON(int)).pipe_input("ann", amount, timestamp=minute * 60_000)
    ...     driver.output_topic("out", STRING, JSON).read_values_to_list()
    [{'n': 1, 'total': 5}, {'n': 2, 'total': 12}, {'n': 2, 'total': 8}]
    """

    _grouping: Grouping[K, V]
    _windows: RollingWindows
    _late: Late | None = None

    @checked(consumer=function("stream"))
    def late(self, consumer: Callable[[KStream[K, V]], object], *, named: Named | None = None) -> RollingKStream[K, V]:
        """Return these windows with a stream of late records: those that lag behind stream time by more than the grace.

        Args:
            consumer: Called with the stream, once for each operation on these windows.
            named: Name of the stream's node.
        """
        return replace(self, _late=Late(consumer, name_of(named)))

    @checked(mapper=function("key, records"))
    def apply(
        self,
        mapper: Callable[[K, Sequence[ValueAndTimestamp[V]]], VO | None],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KStream[K, VO]:
        """Make each result of all records of a window: `mapper(key, records)`, with values and times.

        >>> from datetime import timedelta
        >>> from riverrun import JSON, STRING, Consumed, RollingWindows, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> def rise(sensor, records):
        ...     *before, now = records
        ...     return {"by": now.value - before[-1].value, "ms": now.timestamp - before[-1].timestamp} if before else None
        >>> builder = StreamsBuilder()
        >>> readings = builder.stream("in", Consumed(STRING, JSON(int))).group_by_key()
        >>> last_two = readings.windowed_by(RollingWindows.of(timedelta(hours=1), records=2))
        >>> last_two.apply(rise, Materialized(value_serde=JSON)).to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for time, value in [(0, 5), (40, 9), (50, 8)]:
        ...         driver.input_topic("in", STRING, JSON(int)).pipe_input("a", value, timestamp=time)
        ...     driver.output_topic("out", STRING, JSON).read_values_to_list()
        [{'by': 4, 'ms': 40}, {'by': -1, 'ms': 10}]

        Args:
            mapper: `(key, records) -> result`; the last record is the current one.
            materialized: The serde of results, and the options of the store, which has the records.
            named: Name of the node.
        """
        options: Materialized[K, Any] = materialized or Materialized()
        return self._rolled(mapper, (mapper,), options, named, options.value_serde)

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
        return self._rolled(folded(reducing(reducer)), (reducer,), options, named, options.value_serde)

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

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. `Latest()` is the
        record itself.
        """
        functions = (initializer, aggregator)
        options: Materialized[K, Any] = materialized or Materialized()
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized, self._grouping.value_serde)
            fold, result = folded(how.aggregator()), how.result
            return self._rolled(
                lambda key, records: result(fold(key, records)),
                how.functions,
                options,
                named,
                options.value_serde or JSON,
            )
        unnamed(*functions)
        return self._rolled(folded(Aggregator(initializer, aggregator)), functions, options, named, options.value_serde)

    @checked(n=NUMBER, by=FIELD, largest=FLAG)
    def top(
        self,
        n: int,
        by: Field = None,
        *,
        largest: bool = True,
        materialized: Materialized[K, list[V]] | None = None,
        named: Named | None = None,
    ) -> KStream[K, list[V]]:
        """List the `n` values of each window with the largest ranks, as `KGroupedStream.top` does."""
        how = Ranking.of(n, by, largest=largest, values=self._grouping.value_serde)
        options = how.stored(materialized, self._grouping.value_serde)
        return self._rolled(folded(how.of_stream), how.functions, options, named, options.value_serde)

    def _rolled(
        self,
        of_window: OfWindow,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
        results: Any,
    ) -> KStream[K, Any]:
        return self._grouping.roll(
            self._windows, of_window, functions, options, named, results=results, late=self._late
        )
