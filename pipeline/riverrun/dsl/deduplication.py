"""Writes the node and the store of `KStream.deduplicate` into a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.event_time_stores import event_time_store, unfit
from riverrun.dsl.options import Materialized
from riverrun.operators.deduplication import StreamDeduplicate
from riverrun.serde.serdes import BYTES
from riverrun.topology.assembly import add_operator
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from riverrun.dsl.plan import Plan
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
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
    content = "times of records that were forwarded"
    if options.value_serde is not None:
        raise unfit(name, content, "value_serde")
    return event_time_store(
        plan,
        name,
        options,
        (key_serde if repetitions.identity is None else None, "identities"),
        BYTES,
        content=content,
        reach_ms=repetitions.within_ms,
        grace_ms=repetitions.grace_ms,
        retention_ms=repetitions.retention_ms,
    )


def _key(key: Any, _value: Any) -> Any:
    return key
