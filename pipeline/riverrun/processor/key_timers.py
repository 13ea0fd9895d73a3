"""`KeyTimers`: a time for each key at which a processor is called, kept in a store and so restored with it."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from riverrun.processor.api import PunctuationType
from riverrun.serde.serdes import BYTES
from riverrun.state.builders import Stores
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.processor.api import ProcessingContext
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder

K = TypeVar("K")

# First bytes of the two entries of a timer: a key's time to find it, and time with key in the order in which timers are due.
_AT, _DUE = b"k", b"t"
# Big-endian, so entries are ordered by time.
_TIME_BYTES = 8
# So many are read into a list before one is called, because calls may set others.
_CALLED_TOGETHER = 1000
_NO_TIMER = MAX_TIME_MS + 1
_INTERVAL = {
    # Whenever stream time advances.
    PunctuationType.STREAM_TIME: timedelta(milliseconds=1),
    PunctuationType.WALL_CLOCK_TIME: timedelta(milliseconds=100),
}


class KeyTimers(Generic[K]):
    """Timers of a processor, at most one for each key (as Flink has them).

    Timers are entries of a store, so they survive restarts, and move with their task. Those that are due are called in the
    order of their times. Several of one time are called in the order of their serialized keys.

    ```python
    class Reminders(Processor[str, str, str, str]):
        def init(self, context):
            self.context = context
            self.timers = KeyTimers(context, "reminders", STRING, self.remind)

        def process(self, record):
            self.timers.set(record.key, record.timestamp + 60_000)

        def remind(self, user, at_ms):
            self.context.forward(Record(user, "are you there?", at_ms))


    builder.add_state_store(KeyTimers.store("reminders"))
    stream.process(Reminders, "reminders")
    ```

    Args:
        context: The processor's context. Make the timers in `init`.
        store: Name of a store that `KeyTimers.store` describes. It belongs to these timers alone.
        key_serde: Writes and reads keys; timers of one time are called in the order of the bytes that it writes.
        call: Called with the key and the time of a timer, ms since the epoch, once it has come. The timer is gone then.
            It may set others; one whose time has passed is called in the same turn.
        punctuation_type: The clock that timers follow: stream time, or the wall clock, which bounded runs refuse.
    """

    def __init__(
        self,
        context: ProcessingContext,
        store: str,
        key_serde: Serde[K],
        call: Callable[[K, int], None],
        punctuation_type: PunctuationType = PunctuationType.STREAM_TIME,
    ) -> None:
        self._store = context.get_state_store(store)
        self._serde = key_serde
        self._call = call
        # No timer is due before; 0 while that is not known.
        self._next_ms = 0
        context.schedule(_INTERVAL[punctuation_type], punctuation_type, self._call_due)

    @staticmethod
    def store(name: str) -> StoreBuilder:
        """Return the store of timers, to be added to the builder."""
        return Stores.key_value_store(name, BYTES, BYTES)

    def set(self, key: K, at_ms: int) -> None:
        """Set the timer of a key, replacing an earlier one. A time that has passed is due at once.

        Args:
            key: The key that `call` gets.
            at_ms: The time, ms since the epoch.

        Raises:
            ValueError: If it is before the epoch, or beyond the latest time.
        """
        if not 0 <= at_ms <= MAX_TIME_MS:
            raise ValueError(f"a timer of {key!r} is set to {at_ms} ms, which is not between 0 and {MAX_TIME_MS}")
        data = self._serde.serialize(key)
        self._remove(data)
        time = at_ms.to_bytes(_TIME_BYTES)
        self._store.put(_AT + data, time)
        self._store.put(_DUE + time + data, b"")
        self._next_ms = min(self._next_ms, at_ms)

    def cancel(self, key: K) -> None:
        """Remove the timer of a key, if there is one."""
        self._remove(self._serde.serialize(key))

    def time_of(self, key: K) -> int | None:
        """Return the time at which the timer of a key is due, ms since the epoch; None without one."""
        time = self._store.get(_AT + self._serde.serialize(key))
        return None if time is None else int.from_bytes(time)

    def _remove(self, data: bytes) -> None:
        time = self._store.get(_AT + data)
        if time is not None:
            self._store.delete(_AT + data)
            self._store.delete(_DUE + time + data)

    def _call_due(self, now_ms: int) -> None:
        while self._next_ms <= now_ms:
            due = list(islice(takewhile(lambda timer: timer[0] <= now_ms, self._waiting()), _CALLED_TOGETHER))
            if not due:
                self._next_ms, _ = next(self._waiting(), (_NO_TIMER, b""))
                return
            # Unknown until the next scan: calls may set other timers, or fail.
            self._next_ms = 0
            for at_ms, data in due:
                # An earlier call of this turn may have changed or cancelled it.
                if self._store.get(_AT + data) == at_ms.to_bytes(_TIME_BYTES):
                    self._remove(data)
                    self._call(self._serde.deserialize(data), at_ms)

    def _waiting(self) -> Iterator[tuple[int, bytes]]:
        """Yield the times and keys of timers, earliest first."""
        for entry, _ in self._store.prefix_scan(_DUE):
            yield int.from_bytes(entry[1 : 1 + _TIME_BYTES]), entry[1 + _TIME_BYTES :]
