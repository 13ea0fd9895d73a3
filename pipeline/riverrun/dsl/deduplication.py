"""Writes the node and the store of `KStream.deduplicate` into a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.options import Materialized
from riverrun.dsl.plan import serde_of
from riverrun.errors import TopologyError
from riverrun.operators.deduplication import StreamDeduplicate
from riverrun.serde.serdes import BYTES
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.assembly import add_operator
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from riverrun.dsl.plan import Plan
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

DEDUPLICATE = "KSTREAM-DEDUPLICATE-"
# The stretch before a record includes its first millisecond.
_BOTH_ENDS_MS = 1


@dataclass(frozen=True, slots=True)
class Repetitions:
    """The records that count as repetitions.

    Args:
        identity: `(key, value) -> identity`; None for the key.
        within_ms: How far apart they are at most, ms.
        grace_ms: How far a record may lag behind stream time, ms; defaults to `within_ms`.
    """

    identity: Callable[[Any, Any], Any] | None
    within_ms: int
    grace_ms: int

    @classmethod
    def of(cls, identity: Callable[[Any, Any], Any] | None, within: timedelta, grace: timedelta | None) -> Repetitions:
        within_ms = millis(within, "within")
        grace_ms = within_ms if grace is None else millis(grace, "grace")
        return cls(identity, within_ms, grace_ms)

    @property
    def retention_ms(self) -> int:
        """How long the times of forwarded records are kept, ms."""
        return self.within_ms + self.grace_ms + _BOTH_ENDS_MS


def drop_repetitions(
    plan: Plan,
    parent: str,
    name: str | None,
    repetitions: Repetitions,
    key_serde: Serde[Any] | None,
    materialized: Materialized[Any, Any] | None,
) -> str:
    """Add the operator and its store, and return the node's name."""
    options: Materialized[Any, Any] = materialized or Materialized()
    node = plan.processor_name(DEDUPLICATE, name)
    store = _store(plan, plan.table_name(options, DEDUPLICATE), repetitions, key_serde, options)
    identity = repetitions.identity or _key
    within_ms, grace_ms = repetitions.within_ms, repetitions.grace_ms

    def write(topology: Topology) -> None:
        add_operator(
            topology,
            node,
            lambda: StreamDeduplicate(store.name, identity, within_ms, grace_ms),
            parent,
            functions=(identity, within_ms, grace_ms),
        )
        topology.add_state_store(store, node)

    plan.add_step(write)
    return node


def _store(
    plan: Plan, name: str, repetitions: Repetitions, key_serde: Serde[Any] | None, options: Materialized[Any, Any]
) -> StoreBuilder:
    refused = {
        "value_serde": options.value_serde,
        "history_retention": options.history_retention,
        "max_entries": options.max_entries,
        "ttl": options.ttl,
        "supplier": options.supplier,
    }
    for option, given in refused.items():
        if given is not None:
            message = f"Store {name} has the times of records that were forwarded: {option} does not fit it"
            raise TopologyError(
                message, hint="Options are name, key_serde, logging, log_config, retention, persistent."
            )
    own = key_serde if repetitions.identity is None else None
    retention_ms = repetitions.retention_ms
    if options.retention is not None:
        retention_ms = millis(options.retention, "retention")
        if retention_ms < repetitions.retention_ms:
            message = f"Store {name} keeps times for {retention_ms} ms, but within, grace and 1 ms are more"
            raise TopologyError(message, hint=f"The least retention is {repetitions.retention_ms} ms.")
    return StoreBuilder(
        name,
        StoreKind.WINDOW,
        serde_of(options.key_serde or own, "identities", f"store {name}", "Materialized"),
        BYTES,
        persistent=plan.persists(options.persistent),
        logging=options.logging,
        log_config=options.log_config,
        retention_ms=retention_ms,
        window_size_ms=max(1, repetitions.within_ms),
        grace_ms=repetitions.grace_ms,
    )


def _key(key: Any, _value: Any) -> Any:
    return key
