"""Options of operators: frozen, one per decision, with Kafka Streams' names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.arguments import SERDE, TEXT, function, optional
from riverrun.dsl.kinds import STORE_SUPPLIER, checked_fields
from riverrun.errors import TopologyError
from riverrun.records import MOST_PARTITIONS, is_legal_topic
from riverrun.serde.debezium import changes_serde, key_serde
from riverrun.serde.serdes import JSON
from riverrun.serde.unlogged import UNAVAILABLE
from riverrun.state.api import StoreKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from riverrun.partitioning import Partitions
    from riverrun.records import AutoOffsetReset, ConsumerRecord
    from riverrun.serde.api import Serde
    from riverrun.serde.debezium import RowChange
    from riverrun.state.suppliers import StoreSupplier

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")
KO = TypeVar("KO")
R = TypeVar("R")


class EmitStrategy(Enum):
    """Determines when a windowed aggregation forwards results (`org.apache.kafka.streams.kstream.EmitStrategy`, KIP-825)."""

    ON_WINDOW_UPDATE = "on-window-update"
    ON_WINDOW_CLOSE = "on-window-close"

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """Forward every update that the cache lets through. The default."""
        return EmitStrategy.ON_WINDOW_UPDATE

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Forward each window once, when stream time has passed its end by the grace period. Not for windows without end."""
        return EmitStrategy.ON_WINDOW_CLOSE


@dataclass(frozen=True, slots=True)
class JoinKind:
    """True if each side appears in the result without a partner."""

    # The repr is part of fingerprints: names and order of the fields must stay.
    left_outer: bool
    right_outer: bool


INNER = JoinKind(left_outer=False, right_outer=False)
LEFT = JoinKind(left_outer=True, right_outer=False)
OUTER = JoinKind(left_outer=True, right_outer=True)


def validate_name(name: str | None) -> None:
    """Refuse names that cannot be part of a topic's name (`Named.validate`)."""
    if name is not None and not is_legal_topic(name):
        message = f"Name {name!r} is illegal: 1 to 249 characters out of a-z A-Z 0-9 . _ - and neither '.' nor '..'"
        raise TopologyError(message)


@checked_fields(key_serde=SERDE, value_serde=SERDE)
@dataclass(frozen=True)
class Consumed(Generic[K, V]):
    """Options for reading a topic (`org.apache.kafka.streams.kstream.Consumed`).

    >>> from riverrun import JSON, LONG, STRING, AutoOffsetReset
    >>> Consumed(STRING, LONG, offset_reset_policy=AutoOffsetReset.latest()).key_serde.name
    'string'
    >>> by_own_time = Consumed(STRING, JSON, timestamp_extractor=lambda record, _partition_time_ms: record.value["at_ms"])

    Deletions from a table reach its extractor as well, and have no value:

    >>> def time_of(record, _partition_time_ms):
    ...     return record.timestamp if record.value is None else record.value["at_ms"]
    >>> rows = Consumed(STRING, JSON, timestamp_extractor=time_of)

    Args:
        key_serde: Reads keys.
        value_serde: Reads values.
        timestamp_extractor: `(record, partition_time_ms) -> event_time_ms`, built in or the user's. Records with a negative
            time are dropped. Default: `default.timestamp.extractor`, usually the record's own timestamp; a negative one then
            stops the task.
        offset_reset_policy: Where to start without committed offsets. Default: `auto.offset.reset`.
        name: Name of the source node.

    Raises:
        TopologyError: If the name is illegal.
    """

    key_serde: Serde[K]
    value_serde: Serde[V]
    timestamp_extractor: Callable[[ConsumerRecord[K, V], int], int] | None = None
    offset_reset_policy: AutoOffsetReset | None = None
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)

    @staticmethod
    def debezium(
        row: type[R] | None = None,
        *,
        key: Any = None,
        types: Mapping[str, str] | None = None,
        keys: Serde[Any] = JSON,
        envelopes: Serde[Any] = JSON,
        placeholder: str = UNAVAILABLE,
        timestamp_extractor: Callable[[ConsumerRecord[Any, Any], int], int] | None = None,
        offset_reset_policy: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> Consumed[Any, RowChange[R]]:
        """Return the options for reading changes of rows that Debezium writes.

        Values are `RowChange`s. `StreamsBuilder.table_from_changes` reads them as the table that they come from. JSON with
        and without its schema is read.

        >>> Consumed.debezium().value_serde.deserialize(b'{"op": "c", "after": {"id": 7}}').after
        {'id': 7}

        Args:
            row: Type of the rows, which msgspec can make of their columns; None for dicts.
            key: Type of the keys. Default: the value of a primary key's only column, or a dict of several.
            types: Debezium's types of columns in JSON without a schema, and in other formats:
                `{"born": "io.debezium.time.Date", "price": "org.apache.kafka.connect.data.Decimal(2)"}`.
            keys: Reads keys that are not JSON as dicts: `Avro()`.
            envelopes: Reads values that are not JSON as dicts: `Avro()`.
            placeholder: The connector's `unavailable.value.placeholder`.
            timestamp_extractor: As of `Consumed`. The time of a change in the database is `source["ts_ms"]`; tombstones have
                no value.
            offset_reset_policy: As of `Consumed`.
            name: Name of the source node.

        Raises:
            TopologyError: If a type does not exist, or the name is illegal.
        """
        try:
            serdes = key_serde(key, types, keys), changes_serde(row, types, envelopes, placeholder)
        except (ValueError, TypeError) as error:
            raise TopologyError(str(error)) from error
        return Consumed(*serdes, timestamp_extractor, offset_reset_policy, name=name)


@checked_fields()
@dataclass(frozen=True)
class Produced(Generic[K, V]):
    """Options for writing a topic (`org.apache.kafka.streams.kstream.Produced`).

    Args:
        key_serde: Writes keys. Default: the stream's.
        value_serde: Writes values. Default: the stream's.
        partitioner: `(topic, key, value, number_of_partitions) -> partition`. None selects Kafka's default; a
            collection sends the record to each of its partitions, and an empty one drops it.
        name: Name of the sink node.

    Raises:
        TopologyError: If the name is illegal.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    partitioner: Callable[[str, K, V, int], Partitions] | None = None
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)


@checked_fields()
@dataclass(frozen=True)
class Grouped(Generic[K, V]):
    """Options for grouping records (`org.apache.kafka.streams.kstream.Grouped`).

    Args:
        key_serde: Serde of the grouping key. Default: the stream's.
        value_serde: Serde of the values. Default: the stream's.
        name: Name of the grouping node and, with `-repartition`, of the repartition topic.

    Raises:
        TopologyError: If the name is illegal.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)


@checked_fields(supplier=STORE_SUPPLIER)
@dataclass(frozen=True)
class Materialized(Generic[K, V]):
    """Options for storing a table (`org.apache.kafka.streams.kstream.Materialized`).

    >>> from riverrun import LONG, STRING
    >>> Materialized(STRING, LONG, name="counts", caching=False).name
    'counts'

    Args:
        key_serde: Serde of the keys. Default: the stream's.
        value_serde: Serde of the values. Default: the stream's for reductions and `to_table`, `LONG` for counts. Results of
            other functions need it if they are stored.
        caching: Whether to hold back updates and forward one per key and commit.
        logging: Whether to write changes to a changelog topic. Without one the state cannot be restored.
        log_config: Topic settings of the changelog.
        retention: Windowed tables: how long to keep windows. At least size plus grace, the default.
        persistent: RocksDB if true, memory if false. Default: the application's setting (`default.dsl.store`).
        max_entries: Tables without windows: number of keys to keep, those used last (`Stores.lruMap`). Evicted rows are
            forgotten, not deleted: downstream operators see no update.
        history_retention: Makes the store versioned: how far back the values of a key can be looked up, and how late an
            update may arrive. Versioned stores are not cached, and need a name.
        supplier: A supplier from `Stores` instead of a name, a location, a retention and a size
            (`Materialized.as(supplier)`). The store of a table has the times of its rows, whatever the supplier.
        name: Name of the store, for queries and its changelog. Default: a generated name.
        ttl: Time to live, for tables read from topics and streams, and for aggregations without windows. A row that was not
            updated for so long is deleted when stream time gets there, here and downstream. `CountWindows` forget the open
            windows of a key. Stores of processors have `Stores.key_value_store(..., ttl=...)`. A group of a table that has
            begun again subtracts rows that it had before the expiry, too: give the table a shorter one.

    Raises:
        TopologyError: If the name is illegal, a versioned store has no name, or an option contradicts the supplier; if
            `max_entries` is negative, or set for a versioned store; if `ttl` is set as well as a history or a number of
            entries. At the operator, if a time is negative or not a whole
            number of ms.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    caching: bool = True
    logging: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)
    retention: timedelta | None = None
    persistent: bool | None = None
    history_retention: timedelta | None = None
    max_entries: int | None = None
    supplier: StoreSupplier | None = None
    name: str | None = field(default=None, kw_only=True)
    ttl: timedelta | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.supplier is not None:
            self._take_over(self.supplier)
        validate_name(self.name)
        if self.history_retention is not None and self.name is None:
            raise TopologyError("A versioned store needs a name", hint="Materialized(name=..., history_retention=...)")
        if self.max_entries is not None and (self.max_entries < 0 or self.history_retention is not None):
            raise TopologyError("max_entries cannot be negative, nor set for a versioned store")
        if self.ttl is not None and (self.max_entries is not None or self.history_retention is not None):
            raise TopologyError("A store with a ttl can have neither max_entries nor history_retention")

    def _take_over(self, supplier: StoreSupplier) -> None:
        """Copy the supplier's properties into the options."""
        retention = timedelta(milliseconds=supplier.retention_ms)
        supplied = {
            "name": supplier.name,
            "persistent": supplier.persistent,
            "max_entries": supplier.max_entries,
            "history_retention": retention if supplier.kind is StoreKind.VERSIONED else None,
            "retention": retention if supplier.kind in {StoreKind.WINDOW, StoreKind.SESSION} else None,
        }
        for option, value in supplied.items():
            if getattr(self, option) not in {None, value}:
                message = f"Cannot set {option} when store supplier is pre-configured."
                raise TopologyError(message, hint=f"The supplier of {supplier.name} determines it.")
            # The class is frozen, and this is still part of its construction.
            object.__setattr__(self, option, value)

    @property
    def is_versioned(self) -> bool:
        """True if the store keeps the history of each key."""
        return self.history_retention is not None


@checked_fields()
@dataclass(frozen=True)
class Joined(Generic[K, V, VO]):
    """Options for joining a stream with a table (`org.apache.kafka.streams.kstream.Joined`).

    Args:
        key_serde: Serde of the keys, if the stream must be repartitioned first.
        value_serde: Serde of the stream's values, if it must be repartitioned first.
        name: Name of the join node, and of the repartition topic.
        grace_period: How long, in stream time, records of the stream wait for late updates of the table. The table must be
            versioned, with a history that is at least as long.

    Raises:
        TopologyError: If the name is illegal; at the join, if the grace period is negative or not a whole number of ms.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    name: str | None = field(default=None, kw_only=True)
    grace_period: timedelta | None = None

    def __post_init__(self) -> None:
        validate_name(self.name)


@checked_fields()
@dataclass(frozen=True)
class TableJoined(Generic[K, KO]):
    """Options for joining a table with another by a foreign key (`org.apache.kafka.streams.kstream.TableJoined`).

    Args:
        partitioner: `(topic, key, None, number_of_partitions) -> partition` of this table's rows, if its topic was not
            written with Kafka's default. By default, answers go to the partition that asked.
        other_partitioner: Partitioner of the other table's keys; None for Kafka's default.
        name: Prefix of the names of all nodes, topics and the store of the join.

    Raises:
        TopologyError: If the name is illegal.
    """

    partitioner: Callable[[str, K, None, int], int | None] | None = None
    other_partitioner: Callable[[str, KO, None, int], int | None] | None = None
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)


@checked_fields(late=optional(function("stream")), other_late=optional(function("stream")))
@dataclass(frozen=True)
class StreamJoined(Generic[K, V, VO]):
    """Options for joining two streams (`org.apache.kafka.streams.kstream.StreamJoined`).

    Args:
        key_serde: Serde of the keys. Default: the streams'.
        value_serde: Serde of the left stream's values. Default: its own.
        other_value_serde: Serde of the right stream's values. Default: its own.
        name: Names the join's nodes and, with `-left` and `-right`, repartition topics.
        store_name: Names the join's stores, and with them their changelogs.
        logging: Whether to write changes of the stores to changelog topics. Without them the state cannot be restored.
        log_config: Topic settings of the changelogs.
        persistent: RocksDB if true, memory if false. Default: the application's setting (`default.dsl.store`).
        this_store_supplier: Supplies the left stream's store, with its name, size and retention.
        other_store_supplier: Supplies the right stream's store.
        late: Called with the stream of late records of the left stream: those that the join does not keep, because stream time
            has passed their windows and the grace. They are joined with what the other side still has, like all records.
        other_late: Called with the stream of late records of the right stream.

    Raises:
        TopologyError: If a name is illegal, or both stores have the same name. At the join, if a stream that is joined with
            itself has `other_late`.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    other_value_serde: Serde[VO] | None = None
    name: str | None = field(default=None, kw_only=True)
    store_name: str | None = None
    logging: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)
    persistent: bool | None = None
    this_store_supplier: StoreSupplier | None = None
    other_store_supplier: StoreSupplier | None = None
    late: Callable[[Any], object] | None = field(default=None, kw_only=True)
    other_late: Callable[[Any], object] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)
        validate_name(self.store_name)
        this, other = self.this_store_supplier, self.other_store_supplier
        if this is not None and other is not None and this.name == other.name:
            raise TopologyError("Both StoreSuppliers have the same name.  StoreSuppliers must provide unique names")


@checked_fields()
@dataclass(frozen=True)
class Repartitioned(Generic[K, V]):
    """Options for sending a stream through an internal topic (`org.apache.kafka.streams.kstream.Repartitioned`).

    Args:
        key_serde: Serde of the keys. Default: the stream's.
        value_serde: Serde of the values. Default: the stream's.
        name: Name of the topic, to which `-repartition` is appended.
        number_of_partitions: Fixed number of partitions. Default: as many as the topics upstream.
        partitioner: `(topic, key, value, number_of_partitions) -> partition`, or several: see `Produced`.

    Raises:
        TopologyError: If the name is illegal, or the number of partitions is less than 1.
    """

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None
    name: str | None = field(default=None, kw_only=True)
    number_of_partitions: int | None = None
    partitioner: Callable[[str, K, V, int], Partitions] | None = None

    def __post_init__(self) -> None:
        validate_name(self.name)
        given = self.number_of_partitions
        if given is not None and not 1 <= given <= MOST_PARTITIONS:
            raise TopologyError(f"number_of_partitions must be at least 1 and at most {MOST_PARTITIONS}, not {given}")


@checked_fields(label=optional(TEXT), mapper=optional(function("key, value")))
@dataclass(frozen=True)
class Printed(Generic[K, V]):
    """Options for printing a stream: a line `[label]: text` per record (`org.apache.kafka.streams.kstream.Printed`).

    Args:
        path: The file to append to. Default: standard output.
        label: The label. Default: the name of the stream's node.
        mapper: `(key, value) -> text`. Default: `key, value`, with `null` for None.
        name: Name of the node.

    Raises:
        TopologyError: If the name is illegal.
    """

    path: Path | None = None
    label: str | None = None
    mapper: Callable[[K, V], str] | None = None
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        validate_name(self.name)


@checked_fields(name=TEXT)
@dataclass(frozen=True, slots=True)
class Named:
    """The name of an operator's node (`org.apache.kafka.streams.kstream.Named`).

    >>> Named("only paid")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    riverrun.errors.TopologyError: Name 'only paid' is illegal: ...

    Args:
        name: 1 to 249 of the characters a-z A-Z 0-9 . _ -, as it may become part of a topic's name.

    Raises:
        TopologyError: If the name is illegal.
    """

    name: str

    def __post_init__(self) -> None:
        validate_name(self.name)


def name_of(named: Named | None) -> str | None:
    """Return the name; None if there is none."""
    return named.name if named is not None else None


def with_value_serde(materialized: Materialized[K, V] | None, serde: Serde[V] | None) -> Materialized[K, V]:
    """Return the options of a table with this value serde, unless they have one."""
    options: Materialized[K, V] = materialized or Materialized()
    return options if options.value_serde is not None else replace(options, value_serde=serde)
