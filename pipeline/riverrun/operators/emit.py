"""Finds the windows of an emit-final aggregation that have closed: `EmitStrategy.on_window_close()`."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun.processor.operator import OperatorContext
    from riverrun.serde.api import Serde


class ClosingWindows:
    """The windows that have not been forwarded yet, in order of closing time, start and serialized key.

    Kafka Streams stores the record that closes windows, then looks the closed windows up in the store. It loses those that this
    record makes the store forget, and forwards closed windows at most once per interval of the wall clock.

    Here the operator asks before it stores each record. No window is lost, and results do not depend on the clock.

    Args:
        store: Name of the store. The time up to which windows have been forwarded is kept under it with the committed offsets.
        key_serde: Serde of the inner keys.
    """

    def __init__(self, store: str, key_serde: Serde[Any]) -> None:
        self._store = store
        self._key_bytes = key_serde.serialize
        self._key_of = key_serde.deserialize
        self._waiting: list[tuple[int, int, bytes]] = []
        self._context: OperatorContext
        self.last_close = -1
        """Time up to which windows have been forwarded, ms; -1 if none was."""

    def init(self, context: OperatorContext, stored: Iterable[tuple[int, int, Any]]) -> None:
        """Continue where the last task stopped: `stored` yields `(closes_ms, start_ms, key)` of every window in the store."""
        self._context = context
        known = context.processor_metadata(self._store)
        self.last_close = -1 if known is None else known
        windows = ((closes, start, self._key_bytes(key)) for closes, start, key in stored)
        self._waiting = [window for window in windows if window[0] > self.last_close]
        heapify(self._waiting)

    def opened(self, closes_ms: int, start: int, key: Any) -> None:
        """Add a new window, which closes when stream time, less grace, reaches `closes_ms`."""
        heappush(self._waiting, (closes_ms, start, self._key_bytes(key)))

    def closed(self, close_ms: int) -> Iterator[tuple[int, int, Any]]:
        """Yield `(closes_ms, start_ms, key)` of the windows that close up to `close_ms`, each once."""
        waiting = self._waiting
        if not waiting or waiting[0][0] > close_ms:
            return
        closes, given = -1, set[tuple[int, int, bytes]]()
        while waiting and waiting[0][0] <= close_ms:
            window = heappop(waiting)
            if window[0] != closes:
                closes, given = window[0], set()
            if window not in given:  # reopened windows and merged sessions are announced again
                given.add(window)
                yield window[0], window[1], self._key_of(window[2])
        self.last_close = close_ms
        self._context.set_processor_metadata(self._store, close_ms)
