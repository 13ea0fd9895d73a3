"""`KStream`: a stream of records. Its methods only append steps to the plan of the builder.

`KTable` creates streams as well, and imports this module inside functions. Modules between the two receive the class of the
tables to create.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import DURATION, FLAG, NUMBER, SINK_TOPIC, function, optional, refuse_unstarted
from riverrun.dsl.branching import BranchedKStream
from riverrun.dsl.deduplication import DEDUPLICATE, Repetitions, drop_repetitions
from riverrun.dsl.grouped_streams import KGroupedStream
from riverrun.dsl.grouping import Grouping
from riverrun.dsl.kinds import (
    BATCH_FETCH,
    FETCH,
    JOIN_WINDOWS,
    PATTERN,
    RETRY,
    STREAM,
    check_columns,
    checked,
    mapper_of,
    negation_of,
    with_key,
)
from riverrun.dsl.ktable import GlobalKTable, KTable
from riverrun.dsl.options import (
    INNER,
    LEFT,
    OUTER,
    Grouped,
    Joined,
    Materialized,
    Named,
    Printed,
    Produced,
    Repartitioned,
    StreamJoined,
    name_of,
)
from riverrun.dsl.patterns import MATCH, Match, results_serde, values_of
from riverrun.dsl.plan import Plan, connect_stores, repartition, repartition_for_join, serde_of
from riverrun.dsl.stream_joins import JoinArguments, JoinInput, add_late_records, join_streams
from riverrun.dsl.stream_table_joins import join_global_table, join_table, read_as_table
from riverrun.errors import TopologyError
from riverrun.operators.lookups import StreamLookup
from riverrun.operators.process import UserProcessor
from riverrun.operators.stateless import (
    Filter,
    FlatMap,
    FlatMapValues,
    MapKey,
    MapPair,
    MapValues,
    PassThrough,
    Peek,
    Print,
)
from riverrun.processor.api import FixedKeyRecord
from riverrun.processor.lookups import BatchLimits, Lookup
from riverrun.processor.suppliers import PROCESSOR, check_supplier, supplied
from riverrun.serde.windowed import with_ends_of
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import Lineage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from riverrun.dsl.options import JoinKind
    from riverrun.dsl.patterns import Pattern
    from riverrun.partitioning import StreamPartitioner
    from riverrun.processor.api import FixedKeyProcessor, Processor
    from riverrun.processor.expressions import Expression
    from riverrun.processor.lookups import Retry
    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology
    from riverrun.windows import JoinWindows

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")
KO = TypeVar("KO")

_LOOKUP_TIMEOUT = timedelta(seconds=10)
_MOST_IN_FLIGHT = 100
_MOST_IN_BATCH = 100
# Three attempts, with the waits between them, are within the limit of a batch.
_BATCH_TIMEOUT = timedelta(seconds=4)
_NO_WAIT = timedelta(0)


@dataclass(frozen=True, slots=True)
class KStream(Generic[K, V]):
    """A stream of records (`org.apache.kafka.streams.kstream.KStream`).

    Streams are immutable: every operation returns a new one. The functions passed in must be deterministic and
    stateless, as they run in every task of every host.

    An operation that may change the key marks the stream. The next operation that needs equal keys together (an
    aggregation, a join) then sends it through an internal repartition topic.

    An operation that may change keys or values discards their serde. A call that needs an unknown serde raises
    `TopologyError`.

    >>> from riverrun import LONG, STRING, Consumed, StreamsBuilder
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", Consumed(STRING, STRING))
    >>> lines.filter(lambda key, line: bool(line)).map_values(len).to("lengths", Produced(STRING, LONG))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("lines", STRING, STRING).pipe_key_value_list([("a", "four"), ("b", "")])
    ...     driver.output_topic("lengths", STRING, LONG).read_key_values_to_list()
    [('a', 4)]
    """

    _plan: Plan
    _node: str
    _sources: frozenset[str]
    _key_serde: Serde[K] | None
    _value_serde: Serde[V] | None
    _repartition_required: bool = False

    @checked()
    def filter(self, predicate: Callable[[K, V], bool], *, named: Named | None = None) -> KStream[K, V]:
        """Keep records for which `predicate(key, value)` holds."""
        node = self._append("KSTREAM-FILTER-", named, lambda: Filter(predicate), predicate)
        return replace(self, _node=node)

    @checked()
    def filter_not(self, predicate: Callable[[K, V], bool], *, named: Named | None = None) -> KStream[K, V]:
        """Keep records for which `predicate(key, value)` does not hold: all that `filter` drops."""
        node = self._append(
            "KSTREAM-FILTER-", named, lambda: Filter(predicate, negated=True), "not", negation_of(predicate)
        )
        return replace(self, _node=node)

    @checked(mapper=function("key, value"))
    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], *, named: Named | None = None) -> KStream[K2, V2]:
        """Replace each record by `mapper(key, value) -> (key, value)`. May change the key; discards the serdes."""
        node = self._append("KSTREAM-MAP-", named, lambda: MapPair(mapper), mapper)
        return self._rekeyed(node, None, None)

    @overload
    def map_values(self, *, named: Named | None = None, **columns: Expression) -> KStream[K, dict[str, Any]]: ...

    @overload
    def map_values(self, mapper: Callable[[V], V2], *, named: Named | None = None) -> KStream[K, V2]: ...

    @overload
    def map_values(self, mapper: Callable[[K, V], V2], *, named: Named | None = None) -> KStream[K, V2]: ...

    @checked(mapper=optional(function("value", "key, value")))
    def map_values(
        self, mapper: Callable[..., Any] | None = None, *, named: Named | None = None, **columns: Expression
    ) -> KStream[K, Any]:
        """Replace each value by `mapper(value)` or `mapper(key, value)`, as its parameters decide. Discards the value serde.

        Or by a dict of named expressions: `map_values(total=col("price") * col("n"))`; null values stay null then.
        """
        made = mapper_of(mapper, columns)
        function = with_key(made)
        node = self._append("KSTREAM-MAPVALUES-", named, lambda: MapValues(function), made, lineage=Lineage.KEPT)
        return self._with_values(node)

    @checked(mapper=function("key, value", yields=True))
    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, named: Named | None = None
    ) -> KStream[K2, V2]:
        """Replace each record by `mapper(key, value) -> [(key, value), …]`. May change the key; discards the serdes."""
        node = self._append("KSTREAM-FLATMAP-", named, lambda: FlatMap(mapper), mapper)
        return self._rekeyed(node, None, None)

    @overload
    def flat_map_values(self, mapper: Callable[[V], Iterable[V2]], *, named: Named | None = None) -> KStream[K, V2]: ...

    @overload
    def flat_map_values(
        self, mapper: Callable[[K, V], Iterable[V2]], *, named: Named | None = None
    ) -> KStream[K, V2]: ...

    @checked(mapper=function("value", "key, value", yields=True))
    def flat_map_values(self, mapper: Callable[..., Iterable[V2]], *, named: Named | None = None) -> KStream[K, V2]:
        """Replace each value by several: `mapper(value) -> [value, …]` or `mapper(key, value)`. Discards the value serde."""
        function = with_key(mapper)
        node = self._append("KSTREAM-FLATMAPVALUES-", named, lambda: FlatMapValues(function), mapper)
        return self._with_values(node)

    @overload
    def map_values_async(
        self,
        fetch: Callable[[V], Awaitable[V2]] | Callable[[K, V], Awaitable[V2]],
        *,
        max_in_flight: int = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        ordered: bool = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        fetch: Callable[[V], V2] | Callable[[K, V], V2],
        *,
        max_in_flight: int = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        ordered: bool = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @checked(fetch=FETCH, max_in_flight=NUMBER, timeout=DURATION, retry=RETRY, ordered=FLAG)
    def map_values_async(
        self,
        fetch: Callable[..., Any],
        *,
        max_in_flight: int = _MOST_IN_FLIGHT,
        timeout: timedelta = _LOOKUP_TIMEOUT,
        retry: Retry | None = None,
        ordered: bool = True,
        named: Named | None = None,
    ) -> KStream[K, Any]:
        """Replace each value by what a service or a database answers, asking for many records at a time.

        Results are those of `map_values`, on every host, whatever is answered first. A commit waits for all records before it.
        A look-up that fails goes to `processing.exception.handler` with its record, after the last attempt. Discards the value
        serde.

        >>> from riverrun import STRING, Consumed, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> async def country_of(city):
        ...     return {"Oslo": "Norway"}.get(city)  # in production: await client.get(...)
        >>> builder = StreamsBuilder()
        >>> cities = builder.stream("cities", Consumed(STRING, STRING))
        >>> cities.map_values_async(country_of).to("countries", Produced(STRING, STRING))
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("cities", STRING, STRING).pipe_input("ann", "Oslo")
        ...     driver.output_topic("countries", STRING, STRING).read_key_values_to_list()
        [('ann', 'Norway')]

        Args:
            fetch: A coroutine function of `(value)` or `(key, value)`, or a blocking function, which is called in threads. It
                runs outside of transactions: after a failure it is called again.
            max_in_flight: Most look-ups of a task at a time. Beyond it, the task takes no more records.
            timeout: How long an attempt may take.
            retry: How often to try; by default once.
            ordered: Whether records keep their order. If not, only records of one key do, and what other inputs of the task
                do meanwhile is seen or not seen below.
            named: Name of the node.

        Raises:
            TopologyError: If a limit is out of range.
        """
        lookup = Lookup.of(fetch, with_key(fetch), timeout, retry, max_in_flight)
        node = self._append(
            "KSTREAM-MAPVALUESASYNC-",
            named,
            lambda: StreamLookup(lookup, is_ordered=ordered, is_flat=False),
            fetch,
            ordered,
            lineage=Lineage.KEPT,
        )
        return self._with_values(node)

    @overload
    def flat_map_values_async(
        self,
        fetch: Callable[[V], Awaitable[Iterable[V2]]] | Callable[[K, V], Awaitable[Iterable[V2]]],
        *,
        max_in_flight: int = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        ordered: bool = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def flat_map_values_async(
        self,
        fetch: Callable[[V], Iterable[V2]] | Callable[[K, V], Iterable[V2]],
        *,
        max_in_flight: int = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        ordered: bool = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @checked(fetch=FETCH, max_in_flight=NUMBER, timeout=DURATION, retry=RETRY, ordered=FLAG)
    def flat_map_values_async(
        self,
        fetch: Callable[..., Any],
        *,
        max_in_flight: int = _MOST_IN_FLIGHT,
        timeout: timedelta = _LOOKUP_TIMEOUT,
        retry: Retry | None = None,
        ordered: bool = True,
        named: Named | None = None,
    ) -> KStream[K, Any]:
        """Replace each value by all values that a service answers. Arguments and errors are those of `map_values_async`."""
        lookup = Lookup.of(fetch, with_key(fetch), timeout, retry, max_in_flight)
        node = self._append(
            "KSTREAM-FLATMAPVALUESASYNC-",
            named,
            lambda: StreamLookup(lookup, is_ordered=ordered, is_flat=True),
            fetch,
            ordered,
        )
        return self._with_values(node)

    @overload
    def map_values_in_batches(
        self,
        fetch: Callable[[list[V]], Awaitable[list[V2] | tuple[V2, ...]]]
        | Callable[[list[K], list[V]], Awaitable[list[V2] | tuple[V2, ...]]],
        *,
        max_records: int = ...,
        max_wait: timedelta = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_in_batches(
        self,
        fetch: Callable[[list[V]], list[V2] | tuple[V2, ...]] | Callable[[list[K], list[V]], list[V2] | tuple[V2, ...]],
        *,
        max_records: int = ...,
        max_wait: timedelta = ...,
        timeout: timedelta = ...,
        retry: Retry | None = ...,
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @checked(fetch=BATCH_FETCH, max_records=NUMBER, max_wait=DURATION, timeout=DURATION, retry=RETRY)
    def map_values_in_batches(
        self,
        fetch: Callable[..., Any],
        *,
        max_records: int = _MOST_IN_BATCH,
        max_wait: timedelta = _NO_WAIT,
        timeout: timedelta = _BATCH_TIMEOUT,
        retry: Retry | None = None,
        named: Named | None = None,
    ) -> KStream[K, Any]:
        """Replace each value by a result of a function that takes many values at a time, such as a model or a database.

        Results are those of `map_values`, on every host, whichever records share a call. A task makes one call at a time, and
        collects the next batch meanwhile. A commit waits for all records before it. Discards the value serde.

        If a call fails after its last attempt, each half of its records is asked for by itself, and so on. Only records that
        fail alone go to `processing.exception.handler`. This takes no more than 22.5 s for each batch.

        >>> from riverrun import LONG, STRING, Consumed, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> def lengths_of(words):
        ...     return [len(word) for word in words]  # in production: model.predict(words).tolist()
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", Consumed(STRING, STRING))
        >>> words.map_values_in_batches(lengths_of).to("lengths", Produced(STRING, LONG))
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("words", STRING, STRING).pipe_value_list(["to", "be"])
        ...     driver.output_topic("lengths", STRING, LONG).read_values_to_list()
        [2, 2]

        Args:
            fetch: A function of `(values)` or `(keys, values)`, which returns a list: the result of each value, in their order.
                Either a coroutine function, or a blocking one, which is called in a thread. It runs outside of transactions:
                after a failure it is called again.
            max_records: Most records of a call, from 1 to 10,000.
            max_wait: How long the first record of a call may wait for others; defaults to no time. A call then takes what is at
                hand, and what has come during the call before. A commit ends the wait.
            timeout: How long an attempt may take; defaults to 4 s.
            retry: How often to try; by default once.
            named: Name of the node.

        Raises:
            TopologyError: If a limit is out of range.
        """
        lookup = Lookup.of(fetch, with_key(fetch), timeout, retry, BatchLimits.of(max_records, max_wait))
        node = self._append(
            "KSTREAM-MAPVALUESINBATCHES-",
            named,
            lambda: StreamLookup(lookup, is_ordered=True, is_flat=False),
            fetch,
            lineage=Lineage.KEPT,
        )
        return self._with_values(node)

    @checked(mapper=function("key, value"))
    def select_key(self, mapper: Callable[[K, V], K2 | None], *, named: Named | None = None) -> KStream[K2, V]:
        """Replace each key by `mapper(key, value)`. Discards the key serde."""
        node = self._append("KSTREAM-KEY-SELECT-", named, lambda: MapKey(mapper), mapper)
        return self._rekeyed(node, None, self._value_serde)

    @checked()
    def peek(self, action: Callable[[K, V], object], *, named: Named | None = None) -> KStream[K, V]:
        """Call `action(key, value)` for each record, and pass the record on. Transactions do not cover actions."""
        node = self._append("KSTREAM-PEEK-", named, lambda: Peek(action), action, lineage=Lineage.KEPT)
        return replace(self, _node=node)

    @checked()
    def foreach(self, action: Callable[[K, V], object], *, named: Named | None = None) -> None:
        """Call `action(key, value)` for each record. Transactions do not cover actions."""
        self._append("KSTREAM-FOREACH-", named, lambda: Peek(action), action)

    @checked(other=STREAM)
    def merge(self, other: KStream[K, V], *, named: Named | None = None) -> KStream[K, V]:
        """Merge two streams, in no particular order between them. Discards the serdes.

        A stream merged with itself is unchanged: no record appears twice.

        Raises:
            TopologyError: If the streams belong to different `StreamsBuilder`s.
        """
        self._plan.check_same(other._plan, self._origin, other._origin)
        name = self._plan.processor_name("KSTREAM-MERGE-", name_of(named))
        # A stream merged with itself has one parent.
        parents = dict.fromkeys((self._node, other._node))
        self._plan.add_step(
            lambda topology: add_operator(topology, name, PassThrough, *parents, functions=(), lineage=Lineage.KEPT)
        )
        self._plan.changes.merges.append(name)
        sources = self._sources | other._sources
        required = self._repartition_required or other._repartition_required
        return KStream(self._plan, name, sources, None, None, required)

    @checked(within=DURATION, by=optional(function("key, value")), grace=optional(DURATION))
    def deduplicate(
        self,
        within: timedelta,
        *,
        by: Callable[[K, V], object] | None = None,
        grace: timedelta | None = None,
        materialized: Materialized[Any, Any] | None = None,
        named: Named | None = None,
    ) -> KStream[K, V]:
        """Drop repetitions: of records with equal identity at most `within` apart, keep the one that arrives first.

        Times are event times. A repetition does not extend the stretch. Repetitions are found within a partition: records
        with equal identity need equal keys. If keys may have changed, the stream is repartitioned first. (After KIP-655.)

        >>> from datetime import timedelta
        >>> from riverrun import STRING, Consumed, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> builder.stream("all", Consumed(STRING, STRING)).deduplicate(timedelta(hours=1)).to("first")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("all", STRING, STRING).pipe_key_value_list([("a", "1"), ("b", "2"), ("a", "3")])
        ...     driver.output_topic("first", STRING, STRING).read_key_values_to_list()
        [('a', '1'), ('b', '2')]

        Args:
            within: How far apart repetitions are at most.
            by: Returns the identity, whose serde is `Materialized(key_serde=...)`. Default: the key. None drops a record.
            grace: How far a record may lag behind stream time; a record that is later is dropped, because its repetitions may
                be forgotten. Default: `within`.
            materialized: Options of the store, which has the times of records that were kept.
            named: Name of the node, and of the repartition topic if there is one.

        Raises:
            TopologyError: If a serde is missing, a time is negative, or an option does not fit a store of windows.
        """
        repetitions, name = Repetitions.of(by, within, grace), name_of(named)
        stream = self
        if self._repartition_required:
            prefix = name or self._plan.processor_name(DEDUPLICATE)
            keys = materialized.key_serde if materialized is not None and by is None else None
            option = "repartition() before it"
            stream = self._repartitioned(prefix, keys, None, is_named=name is not None, option=option)
        parent, keys_of_stream = stream._node, stream._key_serde  # noqa: SLF001 - the same class
        node = drop_repetitions(self._plan, parent, name, repetitions, keys_of_stream, materialized)
        return replace(stream, _node=node)

    @checked(pattern=PATTERN, within=DURATION, grace=DURATION, late=optional(function("stream")))
    def match(
        self,
        pattern: Pattern[V],
        *,
        within: timedelta,
        grace: timedelta,
        grouped: Grouped[K, V] | None = None,
        late: Callable[[KStream[K, V]], object] | None = None,
        materialized: Materialized[K, dict[str, list[V]]] | None = None,
        named: Named | None = None,
    ) -> KStream[K, dict[str, list[V]]]:
        """Find a pattern in the records of each key: one result for each match, with its records by the names of elements.

        Records count in order of event time, so each waits until stream time has passed its time by the grace. The next match
        begins after the last record of the one before. If keys may have changed, the stream is repartitioned first.
        (As Flink's complex event processing, and `MATCH_RECOGNIZE` of SQL.)

        >>> from datetime import timedelta
        >>> from riverrun import JSON, STRING, Consumed, Pattern, StreamsBuilder
        >>> from riverrun.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> logins = builder.stream("logins", Consumed(STRING, STRING))
        >>> pattern = Pattern.begin("failed", lambda said: said == "no").times_or_more(2).next("ok", lambda said: said == "yes")
        >>> logins.match(pattern, within=timedelta(minutes=5), grace=timedelta(0)).to("guessed")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("logins", STRING, STRING).pipe_key_value_list([("ann", "no"), ("ann", "no"), ("ann", "yes")])
        ...     driver.output_topic("guessed", STRING, JSON).read_key_values_to_list()
        [('ann', {'failed': ['no', 'no'], 'ok': ['yes']})]

        Args:
            pattern: What to find.
            within: How long a match may take: all of its records come less than that after the first one.
            grace: How far a record may lag behind stream time; one that lags by more is dropped, and counts as late.
            grouped: Serdes of keys and records; default: the stream's. Its name is that of the repartition topic.
            late: Called with the stream of late records.
            materialized: The serde of results, and the options of the store, which has the records that may belong to a match.
            named: Name of the node, and of the repartition topic if there is one.

        Raises:
            TopologyError: If a serde is missing, a time is negative, or all elements of the pattern are optional.
        """
        match, name = Match.of(pattern, within, grace), name_of(named)
        options: Materialized[K, dict[str, list[V]]] = materialized or Materialized()
        groups: Grouped[K, V] = grouped or Grouped()
        keys, values = options.key_serde or groups.key_serde or self._key_serde, groups.value_serde or self._value_serde
        stream = replace(self, _key_serde=keys, _value_serde=values)
        if self._repartition_required:
            topic = groups.name or name
            prefix = topic or self._plan.processor_name(MATCH)
            stream = self._repartitioned(prefix, keys, values, is_named=topic is not None, option="grouped")
        store_name = self._plan.table_name(options, MATCH)
        node = self._plan.processor_name(MATCH, name)
        values = values_of(values, store_name)
        stores = match.stores(self._plan, store_name, options, keys, values)
        match.operator(stores, values)  # mistakes in the pattern are noticed here
        parent = stream._node  # noqa: SLF001

        def write(topology: Topology) -> None:
            add_operator(topology, node, lambda: match.operator(stores, values), parent, functions=match.functions)
            for store in stores:
                topology.add_state_store(store, node)

        self._plan.add_step(write)
        if late is not None:
            refused = add_late_records(self._plan, store_name, parent)
            refuse_unstarted(late(replace(stream, _node=refused)), f"The consumer of {refused}", TopologyError)
        key_serde, sources = stores[0].key_serde, stream._sources  # noqa: SLF001
        return KStream(self._plan, node, sources, key_serde, results_serde(options, values))

    @checked()
    def process(
        self, supplier: Callable[[], Processor[K, V, K2, V2]], *state_stores: str, named: Named | None = None
    ) -> KStream[K2, V2]:
        """Run a `Processor` on each record; it may use the named stores. May change the key; discards the serdes.

        Args:
            supplier: Returns a new processor on each call; a class will do. If it has `stores()` (a static method of a
                class), the stores that it returns need not be added or named.
            state_stores: Names of stores added by `StreamsBuilder.add_state_store`.
            named: Name of the node.

        Raises:
            TopologyError: At `build()`, if the supplier returns one processor twice, or a store does not exist.
        """
        # Only here, a user's name does not consume a number (`KStreamImpl.process`).
        name = name_of(named) or self._plan.processor_name("KSTREAM-PROCESSOR-")
        parent = self._node

        def write(topology: Topology) -> None:
            topology.add_processor(name, supplier, parent)
            if state_stores:
                topology.connect_processor_and_state_stores(name, *state_stores)

        self._plan.add_step(write)
        # A processor may change keys and values.
        self._plan.changes.of_values.add(name)
        return self._rekeyed(name, None, None)

    @checked()
    def process_values(
        self, supplier: Callable[[], FixedKeyProcessor[K, V, V2]], *state_stores: str, named: Named | None = None
    ) -> KStream[K, V2]:
        """Run a `FixedKeyProcessor` on each record; it may use the named stores. Keeps keys; discards the value serde.

        Args:
            supplier: Returns a new processor on each call; a class will do. If it has `stores()` (a static method of a
                class), the stores that it returns need not be added or named.
            state_stores: Names of stores added by `StreamsBuilder.add_state_store`.
            named: Name of the node.

        Raises:
            TopologyError: If the supplier returns one processor twice; at `build()`, if a store does not exist.
        """
        # A user's name does not consume a number, as in Kafka Streams.
        name = name_of(named) or self._plan.processor_name("KSTREAM-PROCESSVALUES-")
        check_supplier(supplier, PROCESSOR)
        check_columns(supplier, self._value_serde)
        parent = self._node

        def write(topology: Topology) -> None:
            operator = lambda: UserProcessor(supplied(supplier, PROCESSOR), FixedKeyRecord)  # noqa: E731 - one line
            add_operator(topology, name, operator, parent, functions=(supplier,), calls_users_object=True)
            connect_stores(topology, name, supplier, state_stores)

        self._plan.add_step(write)
        return self._with_values(name)

    @checked()
    def split(self, *, named: Named | None = None) -> BranchedKStream[K, V]:
        """Split the stream: `split().branch(predicate, …)…default_branch()` or `.no_default_branch()`."""
        name = self._plan.processor_name("KSTREAM-BRANCH-", name_of(named))
        return BranchedKStream.of(self._plan, self._node, name, lambda node: replace(self, _node=node))

    @checked()
    def print(self, printed: Printed[K, V] | None = None) -> None:
        """Print each record as `[label]: key, value`, with `null` for None. Transactions do not cover the output."""
        options: Printed[K, V] = printed or Printed()
        label, mapper = options.label or self._node, options.mapper or _key_and_value
        node_name = Named(options.name) if options.name else None
        self._append("KSTREAM-PRINTER-", node_name, lambda: Print(label, mapper, options.path), mapper)

    @checked()
    def to_table(self, materialized: Materialized[K, V] | None = None, *, named: Named | None = None) -> KTable[K, V]:
        """Read the stream as a table: the last value per key counts, a null value deletes, and null keys are dropped.

        Args:
            materialized: How to store it. Without a name, it is stored only if a downstream operator needs it.
            named: Name of the table's node and, with `-repartition`, of the repartition topic if keys may have changed.

        Raises:
            TopologyError: If a serde is missing.
        """
        options: Materialized[K, V] = materialized or Materialized()
        name = self._plan.processor_name("KSTREAM-TOTABLE-", name_of(named))
        store_name = self._plan.table_name(options, "KSTREAM-TOTABLE-")
        keys = with_ends_of(options.key_serde or self._key_serde, self._key_serde)
        values = options.value_serde or self._value_serde
        stream = (
            self._repartitioned(name, keys, values, is_named=named is not None, option="Materialized")
            if self._repartition_required
            else self
        )
        node = read_as_table(self._plan, stream._node, name, store_name, (keys, values), options)  # noqa: SLF001
        return KTable(self._plan, node, stream._sources, keys, values)  # noqa: SLF001 - the same class

    @checked()
    def repartition(self, repartitioned: Repartitioned[K, V] | None = None) -> KStream[K, V]:
        """Send the stream through an internal topic, partitioned by the current key.

        Raises:
            TopologyError: If a serde is missing.
        """
        options: Repartitioned[K, V] = repartitioned or Repartitioned()
        name = options.name or self._plan.processor_name("KSTREAM-REPARTITION-")
        return self._repartitioned(
            name,
            options.key_serde,
            options.value_serde,
            partitions=options.number_of_partitions,
            partitioner=options.partitioner,
            is_optimizable=False,
            is_named=options.name is not None,
            option="Repartitioned",
        )

    @checked()
    def group_by_key(self, grouped: Grouped[K, V] | None = None) -> KGroupedStream[K, V]:
        """Group by the current key, for an aggregation."""
        options: Grouped[K, V] = grouped or Grouped()
        return KGroupedStream(
            Grouping(
                table=KTable,
                stream=KStream,
                plan=self._plan,
                node=self._node,
                sources=self._sources,
                key_serde=options.key_serde or self._key_serde,
                value_serde=options.value_serde or self._value_serde,
                name=options.name,
                repartition_required=self._repartition_required,
            )
        )

    @checked(mapper=function("key, value"))
    def group_by(
        self, mapper: Callable[[K, V], K2 | None], grouped: Grouped[K2, V] | None = None
    ) -> KGroupedStream[K2, V]:
        """Group by `mapper(key, value)`, for an aggregation. Always uses a repartition topic.

        Records whose group is None are not aggregated.
        """
        options: Grouped[K2, V] = grouped or Grouped()
        name = self._plan.processor_name("KSTREAM-KEY-SELECT-", options.name)
        self._add(name, lambda: MapKey(mapper), mapper)
        self._plan.changes.of_keys[name] = None
        value_serde = options.value_serde or self._value_serde
        return KGroupedStream(
            Grouping(
                table=KTable,
                stream=KStream,
                plan=self._plan,
                node=name,
                sources=self._sources,
                key_serde=options.key_serde,
                value_serde=value_serde,
                name=options.name,
                repartition_required=True,
            )
        )

    @overload
    def join(
        self, other: KTable[K, VO], joiner: Callable[[V, VO], V2], *, joined: Joined[K, V, VO] | None = None
    ) -> KStream[K, V2]: ...

    @overload
    def join(
        self, other: KTable[K, VO], joiner: Callable[[K, V, VO], V2], *, joined: Joined[K, V, VO] | None = None
    ) -> KStream[K, V2]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[V, VO], V2],
        *,
        key_selector: Callable[[K, V], KO | None],
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, V, VO], V2],
        *,
        key_selector: Callable[[K, V], KO | None],
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V, VO], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @checked(windows=optional(JOIN_WINDOWS))
    def join(
        self,
        other: KTable[Any, VO] | GlobalKTable[Any, VO] | KStream[K, VO],
        joiner: Callable[..., V2],
        windows: JoinWindows | None = None,
        *,
        key_selector: Callable[[K, V], Any] | None = None,
        joined: Joined[K, V, VO] | StreamJoined[K, V, VO] | None = None,
        named: Named | None = None,
    ) -> KStream[K, V2]:
        """Look up each record in a table, or join it with records of another stream that are close in time.

        Records without a match are dropped. A join with a table happens when the stream's record arrives, with the
        table's content at that moment. A join of two streams happens when the later record arrives.

        Args:
            other: The other side. A `KTable` or a `KStream` must have as many partitions as this stream, a
                `GlobalKTable` any number.
            joiner: `(value, other_value)` or `(key, value, other_value)`, depending on its parameters.
            windows: How far apart in time records of both streams may be; only for a `KStream`.
            key_selector: `(key, value) -> key` to look up; only for a `GlobalKTable`.
            joined: Serdes and names: `Joined` for a `KTable`, `StreamJoined` for a `KStream`.
            named: Name of the node; only for a `GlobalKTable`.

        Raises:
            TopologyError: If an argument or a serde is missing, or an argument does not belong to this kind of join.
                Also if the other side belongs to another `StreamsBuilder`. At `build()`, if there is a grace period and
                the table is not versioned or its history is shorter.
        """
        arguments = JoinArguments(windows, key_selector, joined, named)
        return self._join(INNER, other, joiner, arguments)

    @overload
    def left_join(
        self, other: KTable[K, VO], joiner: Callable[[V, VO | None], V2], *, joined: Joined[K, V, VO] | None = None
    ) -> KStream[K, V2]: ...

    @overload
    def left_join(
        self, other: KTable[K, VO], joiner: Callable[[K, V, VO | None], V2], *, joined: Joined[K, V, VO] | None = None
    ) -> KStream[K, V2]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[V, VO | None], V2],
        *,
        key_selector: Callable[[K, V], KO | None],
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def left_join(
        self,
        other: GlobalKTable[KO, VO],
        joiner: Callable[[K, V, VO | None], V2],
        *,
        key_selector: Callable[[K, V], KO | None],
        named: Named | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def left_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO | None], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def left_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V, VO | None], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @checked(windows=optional(JOIN_WINDOWS))
    def left_join(
        self,
        other: KTable[Any, VO] | GlobalKTable[Any, VO] | KStream[K, VO],
        joiner: Callable[..., V2],
        windows: JoinWindows | None = None,
        *,
        key_selector: Callable[[K, V], Any] | None = None,
        joined: Joined[K, V, VO] | StreamJoined[K, V, VO] | None = None,
        named: Named | None = None,
    ) -> KStream[K, V2]:
        """Join as `join` does; records of this stream without a match are joined with None.

        In a join with another stream, such a result appears when stream time has passed the record's window and the
        grace period. A null key has no match (KIP-962). Arguments and errors are those of `join`.
        """
        arguments = JoinArguments(windows, key_selector, joined, named)
        return self._join(LEFT, other, joiner, arguments)

    @overload
    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V | None, VO | None], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @overload
    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[K, V | None, VO | None], V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]: ...

    @checked(other=STREAM, windows=JOIN_WINDOWS)
    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[..., V2],
        windows: JoinWindows,
        *,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, V2]:
        """Join two streams; records of either stream without a match are joined with None when their window closes.

        Arguments and errors are those of `join`.
        """
        return self._join_stream(OUTER, other, joiner, windows, joined or StreamJoined())

    @checked(topic=SINK_TOPIC)
    def to(self, topic: str | Callable[[K, V, int], str], produced: Produced[K, V] | None = None) -> None:
        """Write the stream to a topic, or to the topic that `topic(key, value, timestamp_ms)` returns.

        Raises:
            TopologyError: If a serde is missing; at `build()`, if the topic's name is illegal.
        """
        options: Produced[K, V] = produced or Produced()
        name = self._plan.processor_name("KSTREAM-SINK-", options.name)
        parent = self._node
        keys = serde_of(options.key_serde or self._key_serde, "keys", f"to({topic!r})", "Produced")
        key_serde = with_ends_of(keys, self._key_serde)
        value_serde = serde_of(options.value_serde or self._value_serde, "values", f"to({topic!r})", "Produced")
        self._plan.add_step(
            lambda topology: topology.add_sink(
                name, topic, parent, key_serde=key_serde, value_serde=value_serde, partitioner=options.partitioner
            )
        )

    @property
    def _origin(self) -> str:
        return self._plan.origin(self._node, self._sources)

    def _append(
        self,
        prefix: str,
        named: Named | None,
        supplier: Callable[[], Operator],
        *functions: object,
        lineage: Lineage = Lineage.OTHER,
    ) -> str:
        name = self._plan.processor_name(prefix, name_of(named))
        # The fingerprint covers the prefix, too: the user's name does not say what the node does.
        self._add(name, supplier, prefix, *functions, lineage=lineage)
        return name

    def _add(
        self, name: str, supplier: Callable[[], Operator], *functions: object, lineage: Lineage = Lineage.OTHER
    ) -> None:
        for each in functions:
            check_columns(each, self._value_serde)
        parent = self._node
        self._plan.add_step(
            lambda topology: add_operator(topology, name, supplier, parent, functions=functions, lineage=lineage)
        )

    def _with_values(self, node: str) -> KStream[K, Any]:
        self._plan.changes.of_values.add(node)
        return KStream(self._plan, node, self._sources, self._key_serde, None, self._repartition_required)

    def _rekeyed(self, node: str, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None) -> KStream[Any, Any]:
        self._plan.changes.of_keys[node] = None
        return KStream(self._plan, node, self._sources, key_serde, value_serde, _repartition_required=True)

    def _repartitioned(
        self,
        prefix: str,
        key_serde: Serde[K] | None,
        value_serde: Serde[V] | None,
        *,
        partitions: int | None = None,
        partitioner: StreamPartitioner | None = None,
        is_optimizable: bool = True,
        is_named: bool,
        option: str,
    ) -> KStream[K, V]:
        keys, values = key_serde or self._key_serde, value_serde or self._value_serde
        source = repartition(
            self._plan,
            self._node,
            prefix,
            (keys, values),
            partitions=partitions,
            partitioner=partitioner,
            is_optimizable=is_optimizable,
            is_named=is_named,
            option=option,
        )
        return KStream(self._plan, source, frozenset({source}), keys, values)

    def _join(
        self,
        kind: JoinKind,
        other: KTable[Any, VO] | GlobalKTable[Any, VO] | KStream[K, VO],
        joiner: Callable[..., V2],
        arguments: JoinArguments,
    ) -> KStream[K, V2]:
        if isinstance(other, KStream):
            return self._join_stream(kind, other, joiner, *arguments.of_stream())
        if isinstance(other, GlobalKTable):
            key, named = arguments.of_global_table()
            self._plan.check_same(other.plan, self._origin, repr(other))
            node = join_global_table(
                self._plan, kind, parent=self._node, open_getter=other.open_getter, joiner=joiner, key=key, named=named
            )
            return KStream(self._plan, node, self._sources, self._key_serde, None, self._repartition_required)
        return self._join_table(kind, other, joiner, arguments.of_table())

    def _join_table(
        self, kind: JoinKind, table: KTable[Any, VO], joiner: Callable[..., V2], joined: Joined[K, V, VO]
    ) -> KStream[K, V2]:
        self._plan.check_same(table._plan, self._origin, table._origin)  # noqa: SLF001 - same family
        stream = self._for_join(joined.name, joined.key_serde, joined.value_serde)
        sources = stream.sources | table.sources
        node = join_table(
            self._plan,
            kind,
            stream=stream,
            table=table._node,  # noqa: SLF001 - same family
            sources=sources,
            joiner=joiner,
            joined=joined,
        )
        return KStream(self._plan, node, sources, stream.key_serde, None)

    def _join_stream(
        self,
        kind: JoinKind,
        other: KStream[K, VO],
        joiner: Callable[..., V2],
        windows: JoinWindows,
        joined: StreamJoined[K, V, VO],
    ) -> KStream[K, V2]:
        self._plan.check_same(other._plan, self._origin, other._origin)
        name = joined.name
        left = self._for_join(name and f"{name}-left", joined.key_serde, joined.value_serde)
        right = other._for_join(name and f"{name}-right", joined.key_serde, joined.other_value_serde)
        if joined.other_late is not None and self._node == other._node:
            message = "A stream that is joined with itself has its late records once"
            raise TopologyError(message, hint="Pass late= instead of other_late=.")
        node, this, that = join_streams(
            self._plan, kind, left=left, right=right, joiner=joiner, windows=windows, joined=joined
        )
        for late, store, side in ((joined.late, this, left), (joined.other_late, that, right)):
            if late is not None:
                refused = add_late_records(self._plan, store, side.node)
                stream = KStream(self._plan, refused, side.sources, side.key_serde, side.value_serde)
                refuse_unstarted(late(stream), f"The consumer of {refused}", TopologyError)
        return KStream(self._plan, node, left.sources | right.sources, left.key_serde, None)

    def _for_join(self, given: str | None, key_serde: Serde[K] | None, value_serde: Serde[V] | None) -> JoinInput:
        """Return this stream as an input of a join: repartitioned if keys may have changed."""
        keys, values = key_serde or self._key_serde, value_serde or self._value_serde
        if not self._repartition_required:
            return JoinInput(self._node, self._sources, keys, values)
        source = repartition_for_join(
            self._plan, self._node, given or self._node, (keys, values), is_named=given is not None
        )
        return JoinInput(source, frozenset({source}), keys, values)


def _key_and_value(key: object, value: object) -> str:
    return f"{'null' if key is None else key}, {'null' if value is None else value}"
