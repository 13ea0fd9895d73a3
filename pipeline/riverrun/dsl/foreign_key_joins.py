"""Adds the nodes and stores of a foreign-key join to the plan (`KTableImpl.doJoinOnForeignKey`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.kinds import with_key
from riverrun.dsl.options import Materialized, TableJoined
from riverrun.dsl.plan import TABLE_OPTION, Plan, serde_of
from riverrun.dsl.tables import Derived, stored_node, table_store
from riverrun.operators.foreign_key_joins import (
    Asking,
    ForeignTableJoin,
    ResponseJoin,
    SubscriptionJoin,
    SubscriptionReceive,
    SubscriptionSend,
)
from riverrun.operators.tables import TableSource
from riverrun.serde.foreign_key import response_serde, subscription_serde
from riverrun.serde.serdes import BYTES
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import OperatorContext
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

_FK = "KTABLE-FK-JOIN-"


@dataclass(frozen=True, slots=True)
class ForeignKeyJoin:
    """The arguments of a foreign-key join.

    Args:
        primary: The table whose rows refer to a foreign key.
        extractor: `(value) -> foreign key` or `(key, value) -> foreign key`.
        joiner: `(value, foreign_value) -> value`.
        left_join: Whether the result has rows without a foreign value.
    """

    primary: Derived
    foreign: Derived
    extractor: Callable[..., Any]
    joiner: Callable[[Any, Any], Any]
    left_join: bool
    joined: TableJoined[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names of the topics, nodes and the store, numbered in Kafka Streams' order."""

    subscription_topic: str
    send: str
    subscription_sink: str
    subscription_source: str
    store: str
    receive: str
    subscription_join: str
    foreign_join: str
    response_topic: str
    response_sink: str
    response_source: str
    resolver: str
    result: str

    @classmethod
    def of(cls, plan: Plan, given: str | None) -> _Names:
        def name(suffix: str, prefix: str) -> str:
            return plan.processor_name(prefix, given and given + suffix)

        return cls(
            subscription_topic=name("-subscription-registration", f"{_FK}SUBSCRIPTION-REGISTRATION-") + "-topic",
            send=name("-subscription-registration-processor", f"{_FK}SUBSCRIPTION-REGISTRATION-"),
            subscription_sink=name("-subscription-registration-sink", "KTABLE-SINK-"),
            subscription_source=name("-subscription-registration-source", "KTABLE-SOURCE-"),
            store=name("-subscription-store", f"{_FK}SUBSCRIPTION-STATE-STORE-"),
            receive=name("-subscription-receive", f"{_FK}SUBSCRIPTION-PROCESSOR-"),
            subscription_join=name("-subscription-join-foreign", f"{_FK}SUBSCRIPTION-PROCESSOR-"),
            foreign_join=name("-foreign-join-subscription", f"{_FK}SUBSCRIPTION-PROCESSOR-"),
            response_topic=name("-subscription-response", f"{_FK}SUBSCRIPTION-RESPONSE-") + "-topic",
            response_sink=name("-subscription-response-sink", "KTABLE-SINK-"),
            response_source=name("-subscription-response-source", "KTABLE-SOURCE-"),
            resolver=name("-subscription-response-resolver", f"{_FK}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-"),
            result=name("-result", f"{_FK}OUTPUT-"),
        )


@dataclass(frozen=True, slots=True)
class _Serdes:
    primary_key: Serde[Any]
    primary_value: Serde[Any]
    foreign_key: Serde[Any]
    foreign_value: Serde[Any]

    @classmethod
    def of(cls, join: ForeignKeyJoin) -> _Serdes:
        primary, foreign = join.primary, join.foreign
        where = "a join by foreign key"
        return cls(
            serde_of(primary.key_serde, "primary keys", where, TABLE_OPTION),
            serde_of(primary.value_serde, "primary values", where, TABLE_OPTION),
            serde_of(foreign.key_serde, "foreign keys", where, TABLE_OPTION),
            serde_of(foreign.value_serde, "foreign values", where, TABLE_OPTION),
        )


def joined_by_foreign_key(
    plan: Plan,
    join: ForeignKeyJoin,
    options: Materialized[Any, Any] | None,
    primary_sources: frozenset[str],
    foreign_sources: frozenset[str],
) -> tuple[Derived, frozenset[str]]:
    """Add the join, and return the joined table with the sources of its records."""
    primary, foreign = join.primary.node, join.foreign.node
    foreign.enable_sending_old_values(force=True)
    # The old row shows which foreign key it left, so that its subscription there can be deleted.
    primary.enable_sending_old_values(force=True)
    foreign.materialize()
    primary.materialize()
    names, serdes = _Names.of(plan, join.joined.name), _Serdes.of(join)
    sources = primary_sources | {names.response_source}
    materialized: Materialized[Any, Any] = options or Materialized()
    store_name = plan.table_name(materialized, f"{_FK}OUTPUT-")
    result = stored_node(
        names.result,
        store_name,
        is_materialized=materialized.name is not None,
        is_versioned=materialized.is_versioned,
    )
    key_serde, value_serde = materialized.key_serde or serdes.primary_key, materialized.value_serde

    def write(topology: Topology) -> None:
        _write_subscriptions(topology, join, names, serdes)
        topology.copartition(foreign_sources | {names.subscription_source})
        _write_responses(topology, join, names, serdes)
        topology.copartition(sources)
        used = store_name if result.is_materialized else None
        add_operator(
            topology,
            names.result,
            lambda: TableSource(used, send_old_values=result.sends_old_values),
            names.resolver,
            functions=(),
        )
        if result.is_materialized:
            topology.add_state_store(table_store(plan, store_name, materialized, key_serde, value_serde), names.result)

    plan.add_step(write)
    return Derived(result, key_serde, value_serde), sources


def _write_subscriptions(topology: Topology, join: ForeignKeyJoin, names: _Names, serdes: _Serdes) -> None:
    """Write the path from the primary table to the foreign table."""
    primary, foreign, other_partitioner = join.primary.node, join.foreign.node, join.joined.other_partitioner
    foreign_key_bytes, primary_key_bytes = serdes.foreign_key.serialize, serdes.primary_key.serialize
    value_bytes, extract = serdes.primary_value.serialize, with_key(join.extractor)
    left_join, store, open_foreign = join.left_join, names.store, foreign.open_getter
    subscriptions = subscription_serde(serdes.primary_key)
    topology.add_repartition_topic(RepartitionTopic(names.subscription_topic))
    add_operator(
        topology,
        names.send,
        lambda: SubscriptionSend(
            extract,
            foreign_key_bytes,
            value_bytes,
            open_asking=_asking(names, serdes),
            left_join=left_join,
            is_versioned=primary.is_versioned,
        ),
        primary.name,
        functions=(join.extractor, "left" if left_join else "inner"),
    )
    topology.add_sink(
        names.subscription_sink,
        names.subscription_topic,
        names.send,
        key_serde=serdes.foreign_key,
        value_serde=subscriptions,
        partitioner=None if other_partitioner is None else _by_key(other_partitioner),
    )
    topology.add_source(
        names.subscription_source,
        names.subscription_topic,
        key_serde=serdes.foreign_key,
        value_serde=subscriptions,
    )
    add_operator(
        topology,
        names.receive,
        lambda: SubscriptionReceive(store, foreign_key_bytes, primary_key_bytes),
        names.subscription_source,
        functions=(),
    )
    kept = StoreBuilder(store, StoreKind.TIMESTAMPED_KEY_VALUE, BYTES, subscriptions)
    topology.add_state_store(kept, names.receive)
    add_operator(topology, names.subscription_join, lambda: SubscriptionJoin(open_foreign), names.receive, functions=())
    topology.connect_processor_and_state_stores(names.subscription_join, *foreign.materialize())
    add_operator(
        topology,
        names.foreign_join,
        lambda: ForeignTableJoin(store, foreign_key_bytes, is_versioned=foreign.is_versioned),
        foreign.name,
        functions=(),
    )
    topology.connect_processor_and_state_stores(names.foreign_join, store)


def _write_responses(topology: Topology, join: ForeignKeyJoin, names: _Names, serdes: _Serdes) -> None:
    """Write the path from the foreign table back to the primary table."""
    primary, joiner, left_join = join.primary.node, join.joiner, join.left_join
    open_primary, value_bytes, partitioner = (
        primary.open_getter,
        serdes.primary_value.serialize,
        join.joined.partitioner,
    )
    extract, responses = with_key(join.extractor), response_serde(serdes.foreign_value)
    topology.add_repartition_topic(RepartitionTopic(names.response_topic))
    topology.add_sink(
        names.response_sink,
        names.response_topic,
        names.subscription_join,
        names.foreign_join,
        key_serde=serdes.primary_key,
        value_serde=responses,
        partitioner=_to_asker if partitioner is None else _by_key(partitioner),
    )
    topology.add_source(
        names.response_source, names.response_topic, key_serde=serdes.primary_key, value_serde=responses
    )
    add_operator(
        topology,
        names.resolver,
        lambda: ResponseJoin(
            open_primary, extract, value_bytes, joiner, open_asking=_asking(names, serdes), left_join=left_join
        ),
        names.response_source,
        functions=(joiner, "left" if left_join else "inner"),
    )
    topology.connect_processor_and_state_stores(names.resolver, *primary.materialize())


def _asking(names: _Names, serdes: _Serdes) -> Callable[[OperatorContext], Asking]:
    """Return a function that opens what both operators in the primary table's task share."""
    return lambda context: context.shared(names.send, lambda: Asking(serdes.primary_key.serialize))


def _to_asker(_topic: str, _key: Any, response: Any, _partitions: int) -> int | None:
    # Not by the key's hash: the primary table's topic may be partitioned otherwise, and the answer has to reach its task.
    partition: int | None = response.primary_partition
    return partition


def _by_key(
    partitioner: Callable[[str, Any, Any, int], int | None],
) -> Callable[[str, Any, Any, int], int | None]:
    """Adapt the user's partitioner, which sees keys only, to the join's values."""
    return lambda topic, key, _value, partitions: partitioner(topic, key, None, partitions)
