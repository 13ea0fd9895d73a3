"""Grouped streams in windows by count: a full window becomes one record of a stream. Time has no part in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.dsl.grouping import reducing
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import Materialized, with_value_serde
from riverrun.operators.aggregations import Aggregator
from riverrun.serde.serdes import JSON

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouping import Grouping
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.options import Named
    from riverrun.processor.aggregates import AggregateFunction
    from riverrun.windows import CountWindows

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")


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
        return self._aggregate(reducing(reducer), (reducer,), options, named)

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
            how = NamedAggregates.of(aggregates, functions, materialized, self._grouping.value_serde)
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


def _itself(aggregate: Any) -> Any:
    return aggregate
