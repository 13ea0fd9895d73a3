"""The common part of windowed aggregations: stores, nodes, operators, serdes, and the numbers they take from the counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.dsl.emit_strategy import EmitStrategy
from riverrun.dsl.plan import TableNode
from riverrun.dsl.tables import check_supplied, table_store
from riverrun.errors import TopologyError
from riverrun.operators.aggregations import Aggregator, StreamWindowAggregate
from riverrun.operators.emit import ClosingWindows
from riverrun.operators.sessions import StreamSessionWindowAggregate, session_store_getter
from riverrun.operators.sliding import StreamSlidingWindowAggregate
from riverrun.operators.tables import window_store_getter
from riverrun.serde.windowed import session_windowed, windowed_of_size_ms, windowed_until
from riverrun.state.api import StoreKind
from riverrun.windows import OwnWindows, SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, millis

if TYPE_CHECKING:
    from riverrun.dsl.options import Materialized
    from riverrun.dsl.plan import Plan
    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.windows import Windows as OwnGiven

OperatorOf = Callable[["StoreBuilder", "TableNode"], "Operator"]
"""Creates the operator of an aggregation from its store and node, when it is known what the node sends."""

FixedWindows = TimeWindows | SlidingWindows | UnlimitedWindows | OwnWindows
"""Windows that their start identifies."""

Windows = FixedWindows | SessionWindows
"""All kinds of windows for streams."""

_AFTER_END_MS = 1
"""How far behind its end a window begins to be over that includes its end, ms."""


@dataclass(frozen=True, slots=True)
class SessionAggregator:
    """The user's functions of a session aggregation: for values, and for merging sessions.

    Args:
        aggregator: Adds a value; has an initializer.
        merger: `(key, aggregate, other_aggregate) -> aggregate`.
    """

    aggregator: Aggregator
    merger: Callable[[Any, Any, Any], Any]


def fixed(windows: FixedWindows | OwnGiven) -> FixedWindows:
    """Return a user's windows in the form that aggregations call."""
    if isinstance(windows, TimeWindows | SlidingWindows | UnlimitedWindows | OwnWindows):
        return windows
    return OwnWindows.of(windows)


def session_reducer(reducer: Callable[[Any, Any], Any]) -> SessionAggregator:
    """Return the functions of a session reduction, which starts from the first value (`SessionWindowedKStreamImpl.reduce`)."""

    def add(_key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else reducer(aggregate, value)

    def merge(_key: Any, one: Any, two: Any) -> Any:
        return two if one is None else reducer(one, two)

    return SessionAggregator(Aggregator(_nothing, add), merge)


def burn_store_name(plan: Plan, materialized: Materialized[Any, Any] | None) -> None:
    """Consume one more number for a `count` whose options name no store, unless windows slide.

    Kafka Streams does so for compatibility (`KGroupedStreamImpl.count`); later generated names depend on it.
    """
    if materialized is not None and materialized.name is None:
        plan.store_name("KSTREAM-AGGREGATE-")


def windowed_store(
    plan: Plan,
    name: str,
    options: Materialized[Any, Any],
    key_serde: Serde[Any] | None,
    windows: Windows,
    emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
) -> StoreBuilder:
    """Return the store of a windowed aggregation, with timestamps (`WindowStoreMaterializer` and its siblings).

    Raises:
        TopologyError: If the retention is shorter than windows can change; if the options ask for a history or a number of
            entries; if the supplier is one for other windows; if a serde is missing.
    """
    _check_supplied(options, windows)
    if options.is_versioned:
        message = f"Store {name} stores windows: it cannot be versioned"
        raise TopologyError(message, hint="Leave history_retention out.")
    if options.max_entries is not None:
        message = f"Store {name} stores windows: retention, not max_entries, limits it"
        raise TopologyError(message)
    retention_ms = windows.retention_ms
    if options.retention is not None:
        retention_ms = millis(options.retention, "retention")
    if retention_ms < windows.retention_ms:
        message = (
            f"Store {name} stores windows for {retention_ms} ms, "
            f"but they can change for {windows.retention_ms} ms: {windows}"
        )
        raise TopologyError(message)
    size_ms = None if isinstance(windows, SessionWindows) else windows.size_ms
    return replace(
        table_store(plan, name, replace(options, supplier=None), key_serde, None),
        kind=StoreKind.SESSION if size_ms is None else StoreKind.TIMESTAMPED_WINDOW,
        retention_ms=retention_ms,
        window_size_ms=size_ms or 0,
        slack_ms=_slack_ms(windows, emit),
        emits_final=emit is EmitStrategy.ON_WINDOW_CLOSE,
        grace_ms=None if isinstance(windows, UnlimitedWindows) else windows.grace_ms,
    )


def _check_supplied(options: Materialized[Any, Any], windows: Windows) -> None:
    check_supplied(options, StoreKind.SESSION if isinstance(windows, SessionWindows) else StoreKind.WINDOW)
    supplier = options.supplier
    if supplier is None or isinstance(windows, SessionWindows):
        return
    if supplier.retain_duplicates:
        message = f"Store {supplier.name} keeps one value per window: it cannot be supplied with retain_duplicates"
        raise TopologyError(message)
    if supplier.window_size_ms != windows.size_ms:
        message = f"Store {supplier.name} is supplied for windows of {supplier.window_size_ms} ms, not for {windows}"
        raise TopologyError(message)


def _slack_ms(windows: Windows, emit: EmitStrategy) -> int:
    """Return how long beyond their retention windows can still be found.

    Stores of closed windows find 1 ms more, as they are ordered by time (`AbstractDualSchemaRocksDBSegmentedBytesStore`). Those
    of sessions do not: a record could change a session that was forwarded.
    """
    if isinstance(windows, SlidingWindows | OwnWindows):
        return windows.slack_ms
    if isinstance(windows, SessionWindows):
        return 0
    return int(emit is EmitStrategy.ON_WINDOW_CLOSE)


def covered(
    functions: tuple[Any, ...], windows: Windows, emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
) -> tuple[Any, ...]:
    """Return the part of a windowed aggregation that the fingerprint covers."""
    if isinstance(windows, OwnWindows):
        return (*functions, *_own(windows.given), windows.size_ms, windows.grace_ms, emit.value)
    own = () if type(windows).__module__ == TimeWindows.__module__ else (type(windows),)
    return (*functions, type(windows).__name__, *astuple(windows), *own, emit.value)


def _own(windows: object) -> tuple[Any, ...]:
    """Describe custom windows by the code of their class and its settings."""
    told = asdict(windows) if is_dataclass(windows) and not isinstance(windows, type) else vars(windows)
    return type(windows), tuple(f"{name}={value}" for name, value in sorted(told.items()))


def windowed_node(plan: Plan, name: str, store: StoreBuilder, windows: Windows) -> TableNode:
    """Return a new table of windows, looked up in its store, and record in the plan when they close.

    Sliding windows and sessions include their end: a record may change them when their time of closing is reached, not after.
    """
    if isinstance(windows, SessionWindows):
        plan.closing_ms[name] = _changeable_ms(windows, store.retention_ms) + _AFTER_END_MS
        return TableNode(name, store.name, lambda c: session_store_getter(c, store.name), is_materialized=True)
    plan.closing_ms[name] = windows.grace_ms + (_AFTER_END_MS if isinstance(windows, SlidingWindows) else 0)
    return TableNode(name, store.name, lambda c: window_store_getter(c, store.name), is_materialized=True)


def _changeable_ms(windows: SessionWindows, kept_ms: int) -> int:
    """Return how far stream time may pass a session's end, ms, while a record can still extend the session.

    A record that joins a session may end one gap after it, and counts for gap plus grace after that. By then the store has
    usually forgotten the session.
    """
    return min(kept_ms, windows.gap_ms + windows.retention_ms)


def windowed_key_serde(inner: Serde[Any], windows: Windows) -> Serde[Any]:
    """Return the serde of a windowed table's keys."""
    if isinstance(windows, SessionWindows):
        return session_windowed(inner)
    if isinstance(windows, OwnWindows):
        return windowed_until(inner, windows.end_of)
    return windowed_of_size_ms(inner, windows.size_ms)


def window_aggregate(windows: FixedWindows, aggregator: Aggregator) -> OperatorOf:
    """Return a factory of operators for windows of a fixed size."""
    if isinstance(windows, SlidingWindows):
        return lambda store, node: StreamSlidingWindowAggregate(
            store.name, windows, aggregator, send_old_values=node.sends_old_values, closing=_closing(store)
        )
    return lambda store, node: StreamWindowAggregate(
        store.name, windows, aggregator, send_old_values=node.sends_old_values, closing=_closing(store)
    )


def session_aggregate(windows: SessionWindows, how: SessionAggregator) -> OperatorOf:
    """Return a factory of operators for sessions."""
    return lambda store, node: StreamSessionWindowAggregate(
        store.name,
        windows,
        how.aggregator,
        how.merger,
        kept_ms=store.retention_ms,
        send_old_values=node.sends_old_values,
        closing=_closing(store),
    )


def _closing(store: StoreBuilder) -> ClosingWindows | None:
    return ClosingWindows(store.name, store.key_serde) if store.emits_final else None


def _nothing() -> None:
    """Return None, the aggregate without values."""
