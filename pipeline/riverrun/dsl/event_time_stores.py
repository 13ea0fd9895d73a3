"""Stores of what an operator keeps of records by their event times, for a time that follows from its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.dsl.plan import serde_of
from riverrun.errors import TopologyError
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.windows import millis

if TYPE_CHECKING:
    from riverrun.dsl.options import Materialized
    from riverrun.dsl.plan import Plan
    from riverrun.serde.api import Serde


def event_time_store(
    plan: Plan,
    name: str,
    options: Materialized[Any, Any],
    keys: tuple[Serde[Any] | None, str],
    values: Serde[Any],
    *,
    content: str,
    reach_ms: int,
    grace_ms: int,
    retention_ms: int,
) -> StoreBuilder:
    """Return a window store whose windows start at times of records.

    `keys` are the serde of keys, unless the options have one, and what the keys are. Messages show that and the `content`.
    `reach_ms` is how far from a record others may be that it meets; `retention_ms` is the least retention, and the default.
    """
    refused = {
        "history_retention": options.history_retention,
        "max_entries": options.max_entries,
        "ttl": options.ttl,
        "supplier": options.supplier,
    }
    for option, given in refused.items():
        if given is not None:
            raise unfit(name, content, option)
    kept_ms = retention_ms if options.retention is None else millis(options.retention, "retention")
    if kept_ms < retention_ms:
        message = f"Store {name} keeps {content} for {kept_ms} ms, but they are needed for {retention_ms} ms"
        raise TopologyError(message, hint=f"The least retention is {retention_ms} ms.")
    return StoreBuilder(
        name,
        StoreKind.WINDOW,
        serde_of(options.key_serde or keys[0], keys[1], f"store {name}", "Materialized"),
        values,
        persistent=plan.persists(options.persistent),
        logging=options.logging,
        log_config=options.log_config,
        retention_ms=kept_ms,
        window_size_ms=max(1, reach_ms),
        grace_ms=grace_ms,
    )


def unfit(store: str, content: str, option: str) -> TopologyError:
    """Return the error that an option does not fit the store."""
    message = f"Store {store} has {content}: {option} does not fit it"
    return TopologyError(message, hint="Options are name, key_serde, logging, log_config, retention, persistent.")
