"""Drops repetitions: the first record of each identity goes on, others within a stretch of event time do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.processor.handlers import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import WindowStore

SEEN = b"\x01"
"""Value of the store's windows. Only their keys and times say something."""


class StreamDeduplicate:
    """Forwards a record unless one of its identity was forwarded at most `within_ms` before or after it (after KIP-655).

    Times are event times, and the first record to arrive wins. A record that was not forwarded does not extend the stretch:
    of equal records every second, one per stretch goes on.

    Records without an identity are dropped. So are records that stream time has passed by more than the grace: the times of
    some that were forwarded may be forgotten by then. Both are counted; repetitions are not.

    Args:
        store: Name of the window store. A window starts at the time of a forwarded record, and has its identity as key.
        identity: `(key, value) -> identity`.
        within_ms: How far apart repetitions are at most, ms.
        grace_ms: How far a record may lag behind stream time, ms.
    """

    def __init__(self, store: str, identity: Callable[[Any, Any], Any], within_ms: int, grace_ms: int) -> None:
        self._store_name = store
        self._identity = identity
        self._within_ms = within_ms
        self._grace_ms = grace_ms
        self._observed = -1
        self._context: OperatorContext
        self._store: WindowStore[Any, bytes]

    def init(self, context: OperatorContext) -> None:
        """Open the store and bind the children."""
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms."""
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that late records stay late."""
        self._observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Forward a record that is the first one."""
        identity = self._identity(key, value)
        if identity is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if timestamp > self._observed:
            self._observed = timestamp
        elif timestamp < self._observed - self._grace_ms:
            self._context.drop(DropReason.LATE)
            return
        first = max(0, timestamp - self._within_ms)
        for _ in self._store.fetch_range(identity, first, timestamp + self._within_ms):
            return
        self._store.put(identity, SEEN, timestamp)
        self._context.forward(key, value, timestamp, headers)

    def close(self) -> None:
        """Leave the store open: the task closes it."""
