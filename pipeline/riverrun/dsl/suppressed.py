"""`Suppressed`: which updates of a table to forward, and how to handle a full buffer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.dsl.kinds import checked
from riverrun.dsl.options import validate_name
from riverrun.dsl.plan import TABLE_OPTION, TableNode, serde_of
from riverrun.dsl.tables import Derived
from riverrun.errors import TopologyError
from riverrun.operators.tables import Suppress, SuppressRules, suppressed_getter
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import SinkNode, SourceNode
from riverrun.windows import MAX_TIME_MS, millis

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from riverrun.dsl.plan import Plan
    from riverrun.topology.nodes import Node
    from riverrun.topology.topology import Topology

_NO_LIMIT = MAX_TIME_MS
"""`Long.MAX_VALUE`."""


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """Limits of the buffer (`org.apache.kafka.streams.kstream.Suppressed.BufferConfig`).

    Start with `max_records`, `max_bytes` or `unbounded`, then refine. By default, a full buffer forwards the oldest
    updates early.
    """

    record_limit: int = _NO_LIMIT
    byte_limit: int = _NO_LIMIT
    emits_early: bool = False
    logging: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def max_records(record_limit: int) -> BufferConfig:
        """Limit the number of keys; a full buffer forwards the oldest updates."""
        return BufferConfig(record_limit=record_limit, emits_early=True)

    @staticmethod
    def max_bytes(byte_limit: int) -> BufferConfig:
        """Limit the size in bytes; a full buffer forwards the oldest updates."""
        return BufferConfig(byte_limit=byte_limit, emits_early=True)

    @staticmethod
    def unbounded() -> BufferConfig:
        """Let the buffer grow without a limit: it may use up memory."""
        return BufferConfig()

    def with_max_records(self, record_limit: int) -> BufferConfig:
        """Return a copy with a limit on keys."""
        return replace(self, record_limit=record_limit)

    def with_max_bytes(self, byte_limit: int) -> BufferConfig:
        """Return a copy with a limit on bytes."""
        return replace(self, byte_limit=byte_limit)

    def with_no_bound(self) -> BufferConfig:
        """Return a copy without limits."""
        return replace(self, record_limit=_NO_LIMIT, byte_limit=_NO_LIMIT, emits_early=False)

    def shut_down_when_full(self) -> BufferConfig:
        """Return a copy that never forwards early: its task fails when the buffer is full."""
        return replace(self, emits_early=False)

    def emit_early_when_full(self) -> BufferConfig:
        """Return a copy that forwards the oldest updates when the buffer is full."""
        return replace(self, emits_early=True)

    def with_logging_disabled(self) -> BufferConfig:
        """Return a copy without a changelog."""
        return replace(self, logging=False, log_config={})

    @checked()
    def with_logging_enabled(self, log_config: Mapping[str, str]) -> BufferConfig:
        """Return a copy with a changelog that has these topic settings."""
        return replace(self, logging=True, log_config=log_config)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Selects the updates of a table to forward (`org.apache.kafka.streams.kstream.Suppressed`).

    >>> from datetime import timedelta
    >>> Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final").name
    'final'
    >>> Suppressed.until_time_limit(timedelta(minutes=5), BufferConfig.max_records(1000)).time_limit_ms
    300000

    Args:
        buffer_config: Limits of the buffer.
        time_limit_ms: How long an update waits for later ones of its key, in event time. None: until its window closes.
        name: Name of the node and, with `-store`, of the buffer.

    Raises:
        TopologyError: If the name is illegal.
    """

    buffer_config: BufferConfig
    time_limit_ms: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        validate_name(self.name)

    @staticmethod
    @checked()
    def until_window_closes(buffer_config: BufferConfig) -> Suppressed:
        """Forward each window once: its last result, when no record can change it any more.

        Stream time must have reached its end plus the grace of windows with an exclusive end. It must have passed the end plus
        the grace of sliding windows, and the end plus gap and grace of sessions.

        Raises:
            TopologyError: If the buffer may forward early, as such results would not be final.
        """
        if buffer_config.emits_early:
            message = "until_window_closes() needs a buffer that never forwards early"
            raise TopologyError(message, hint="Use BufferConfig.unbounded(), or shut_down_when_full().")
        return Suppressed(buffer_config)

    @staticmethod
    @checked()
    def until_time_limit(time_to_wait: timedelta, buffer_config: BufferConfig) -> Suppressed:
        """Forward at most one update per key in `time_to_wait`, counted in event time from the first waiting update.

        Raises:
            TopologyError: If the time is negative, or not a whole number of ms.
        """
        return Suppressed(buffer_config, millis(time_to_wait, "time limit"))

    @checked()
    def with_name(self, name: str) -> Suppressed:
        """Return a copy with a name.

        Raises:
            TopologyError: If the name is illegal.
        """
        return replace(self, name=name)

    def rules(self, topology: Topology, closing_ms: Mapping[str, int], node: str) -> SuppressRules:
        """Return the rules for the operator.

        Args:
            topology: The topology so far.
            closing_ms: How long after their ends windows may change, by the nodes that aggregate them.
            node: The node whose updates are suppressed.

        Raises:
            TopologyError: If updates wait for windows to close and there are no windows upstream.
        """
        config, limit_ms = self.buffer_config, self.time_limit_ms
        wait_ms = find_closing_ms(topology, closing_ms, node) if limit_ms is None else limit_ms
        return SuppressRules(
            wait_ms,
            waits_for_close=limit_ms is None,
            max_records=config.record_limit,
            max_bytes=config.byte_limit,
            emits_early=config.emits_early,
        )

    def covered(self) -> tuple[Any, ...]:
        """Return the part that the fingerprint covers."""
        config = self.buffer_config
        return (self.time_limit_ms, config.record_limit, config.byte_limit, config.emits_early)


def suppressed_table(plan: Plan, parent: Derived, suppressed: Suppressed) -> Derived:
    """Return the table with the updates that pass (`KTableImpl.suppress`)."""
    # A buffer keeps one version of a key (KIP-914).
    if parent.node.is_versioned:
        message = "suppress() is only supported for non-versioned KTables"
        raise TopologyError(message, hint="Tables derived from a versioned one are versioned, unless stored.")
    name = suppressed.name or plan.processor_name("KTABLE-SUPPRESS-")
    config, above = suppressed.buffer_config, parent.node
    store = StoreBuilder(
        f"{name}-store" if suppressed.name else plan.store_name("KTABLE-SUPPRESS-"),
        StoreKind.BUFFER,
        serde_of(parent.key_serde, "keys", name, TABLE_OPTION),
        serde_of(parent.value_serde, "values", name, TABLE_OPTION),
        persistent=False,
        logging=config.logging,
        log_config=config.log_config,
    )
    if suppressed.name is None and config.logging:
        plan.unnamed.add_changelog(store.name)
    # The buffer remembers the last value of a key that it forwarded.
    above.enable_sending_old_values(force=True)

    def write(topology: Topology) -> None:
        rules = suppressed.rules(topology, plan.closing_ms, above.name)
        add_operator(
            topology, name, lambda: Suppress(name, store.name, rules), above.name, functions=suppressed.covered()
        )
        topology.add_state_store(store, name)

    plan.add_step(write)
    node = TableNode(
        name,
        "",
        lambda c: suppressed_getter(c, store.name, above.open_getter),
        is_materialized=False,
        parents=(above,),
        used_stores=(store.name,),
    )
    return Derived(node, parent.key_serde, parent.value_serde)


def find_closing_ms(topology: Topology, closing_ms: Mapping[str, int], node: str, chain: str = "") -> int:
    """Return how long after its end a window from which `node` is computed may change, ms (`GraphGraceSearchUtil`)."""
    if node in closing_ms:
        return closing_ms[node]
    path = f"{node}->{chain}" if chain else node
    parents = _parents(topology, topology.nodes[node])
    if not parents:
        raise TopologyError(f"Window close time is only defined for windowed computations. Got [{path}].")
    return max(find_closing_ms(topology, closing_ms, parent, path) for parent in parents)


def _parents(topology: Topology, node: Node) -> tuple[str, ...]:
    """Return the parents, also through repartition topics."""
    if not isinstance(node, SourceNode):
        return node.parents
    written = set(node.topics) & topology.repartition_topics.keys()
    return tuple(n.name for n in topology.nodes.values() if isinstance(n, SinkNode) and n.topic in written)
