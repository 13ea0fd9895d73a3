"""Who forwards the update of a stored value: the operator at once, or the store's cache when it is flushed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.processor.operator import OperatorContext
    from pipeline.state.api import CachedUpdate


@dataclass(frozen=True, slots=True)
class CachedForward:
    """Connects a store's cache with the children of the operator that owns it (`TimestampedCacheFlushListener`).

    Args:
        holds_back: True if the store's cache forwards, so that the operator must not.
    """

    holds_back: bool

    @classmethod
    def of(
        cls,
        context: OperatorContext,
        store: Any,
        *,
        send_old_values: bool,
        key_of: Callable[[Any], Any] = lambda key: key,
    ) -> CachedForward:
        """Listen to the store, if it holds anything back.

        Args:
            context: Context of the operator.
            store: The store.
            send_old_values: Whether downstream wants to know what an update replaced.
            key_of: Makes the forwarded key of the store's key (windowed aggregations forward `Windowed` keys).
        """

        def forward(updates: Sequence[CachedUpdate]) -> None:
            context.forward_flushed(updates, key_of)

        return cls(store.set_flush_listener(forward, send_old_values=send_old_values))
