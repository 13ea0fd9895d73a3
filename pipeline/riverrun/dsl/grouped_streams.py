"""`KGroupedStream`: a stream grouped by key, to be aggregated into a table, or to be put into windows first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import FLAG, NUMBER
from riverrun.dsl.cogroup import CogroupedKStream, Cogrouping
from riverrun.dsl.count_windowed_streams import CountWindowedKStream
from riverrun.dsl.grouping import burn_store_name, fixed, reducing
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import Materialized, with_value_serde
from riverrun.dsl.ranking import Ranking
from riverrun.dsl.rolling_streams import RollingKStream
from riverrun.dsl.windowed_streams import SessionWindowedKStream, TimeWindowedKStream
from riverrun.operators.aggregations import COUNT, Aggregator, StreamAggregate
from riverrun.processor.aggregates import FIELD
from riverrun.serde.serdes import LONG
from riverrun.windows import CountWindows, RollingWindows, SessionWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouping import Grouping
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Named
    from riverrun.dsl.plan import TableNode
    from riverrun.processor.aggregates import AggregateFunction, Field
    from riverrun.processor.operator import Operator
    from riverrun.state.api import StoreBuilder
    from riverrun.windows import SlidingWindows, TimeWindows, UnlimitedWindows, Windows

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
        return self._aggregate("KSTREAM-REDUCE-", reducing(reducer), (reducer,), options, named)

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
        how = Ranking.of(n, by, largest=largest, values=self._grouping.value_serde)
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

    @overload
    def windowed_by(self, windows: RollingWindows) -> RollingKStream[K, V]: ...

    @checked()
    def windowed_by(
        self,
        windows: TimeWindows
        | SlidingWindows
        | UnlimitedWindows
        | SessionWindows
        | CountWindows
        | RollingWindows
        | Windows,
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V] | CountWindowedKStream[K, V] | RollingKStream[K, V]:
        """Aggregate per key and window."""
        if isinstance(windows, RollingWindows):
            return RollingKStream(self._grouping, windows)
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
