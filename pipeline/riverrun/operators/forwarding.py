"""Forwards updates of stored values, either at once by the operator or later when the store's cache is flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.operator import OperatorContext
    from riverrun.state.api import CachedUpdate


def cache_forwards(
    context: OperatorContext,
    store: Any,
    *,
    send_old_values: bool,
    key_of: Callable[[Any], Any] = lambda key: key,
) -> bool:
    """Connect a store's cache, if it has one, with the children of its operator (`TimestampedCacheFlushListener`).

    Args:
        context: Context of the operator.
        store: The store.
        send_old_values: Whether downstream needs the value that an update replaced.
        key_of: Makes the forwarded key of the store's key (windowed aggregations forward `Windowed` keys).

    Returns:
        Whether the cache forwards, so that the operator must not.
    """

    def forward(updates: Sequence[CachedUpdate]) -> None:
        context.forward_flushed(updates, key_of)

    return bool(store.set_flush_listener(forward, send_old_values=send_old_values))
