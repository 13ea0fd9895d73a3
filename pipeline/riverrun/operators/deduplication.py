"""Drops repetitions: forwards the first record of each identity, but no others within a stretch of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.processor.handlers import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import WindowStore

# Only keys and times of the windows matter, but a value of None would delete them.
SEEN = b"\x01"


class StreamDeduplicate:
    """Forwards a record unless one of its identity was forwarded at most `within_ms` before or after it (after KIP-655).

    Times are event times, and the first record to arrive wins. A record that was not forwarded does not extend the stretch:
    of equal records every second, one per stretch is forwarded.

    Records without an identity, and records that are late by more than the grace, are dropped and counted. Repetitions are not
    counted. A window of the store starts at the time of a forwarded record, and has its identity as key.
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
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        self._observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        identity = self._identity(key, value)
        if identity is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if timestamp > self._observed:
            self._observed = timestamp
        # The times of records that were forwarded may be forgotten by now.
        elif timestamp < self._observed - self._grace_ms:
            self._context.drop(DropReason.LATE)
            return
        first = max(0, timestamp - self._within_ms)
        for _ in self._store.fetch_range(identity, first, timestamp + self._within_ms):
            return
        self._store.put(identity, SEEN, timestamp)
        self._context.forward(key, value, timestamp, headers)
