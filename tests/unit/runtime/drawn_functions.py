"""Functions and processors of drawn topologies: they delete, change values in place, look around in stores, and fail."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun import STRING, KeyTimers, PunctuationType, Record, Windowed

if TYPE_CHECKING:
    from riverrun import ConsumerRecord, FixedKeyProcessorContext, FixedKeyRecord, ProcessorContext

MOST = 40
"""Length of the longest text that an aggregation makes."""


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def short(text: object) -> str:
    """The end of a text, so that chains of operators do not make endless ones."""
    return str(text)[-MOST:]


def grown(_key: Any, value: str | None, known: str) -> str | None:
    """The aggregate with a value; none after many."""
    return None if len(known) > 12 else short(f"{known}{value}")


def counted(_key: Any, _value: Any, number: int) -> int | None:
    return None if number > 5 else number + 1


def appended(_key: Any, value: str | None, words: list[str]) -> list[str] | None:
    """The list itself, changed in place; none after too many."""
    words.append(str(value)[:3])
    return words if len(words) < 4 else None


def both(one: object, other: object) -> str | None:
    """Two values as one; none for some."""
    return None if other == "never" else short(f"{one}+{other}")


def reduced(one: Any, other: Any) -> Any:
    """A reducer, which deletes at some values; above nulls, too."""
    return None if other == "never" else short(f"{one}{other}")


def flat(key: Any) -> str:
    """A key, windowed or not, as text."""
    return f"{key.key}@{key.window.start}-{key.window.end}" if isinstance(key, Windowed) else str(key)


class Failing:
    """A user's function that fails at some values, as the seed has it: it raises, or ends the process."""

    def __init__(self, at: str | None, error: BaseException) -> None:
        self.at = at
        self.error = error

    def __call__(self, value: Any) -> Any:
        if self.at is not None and value is not None and self.at in str(value):
            raise self.error
        return value


class Tick:
    """Tells of each record where it comes from, and now and then how far both clocks are."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(ms(40), PunctuationType.STREAM_TIME, self._tick)
        context.schedule(ms(15), PunctuationType.WALL_CLOCK_TIME, self._tick)

    def process(self, record: Record[Any, Any]) -> None:
        if record.value == "commit":
            self.context.commit()
        place = self.context.record_metadata
        known = f"{record.value} of {place and (place.topic, place.offset)} at {self.context.current_stream_time_ms()}"
        self.context.forward(record.with_value(known).with_headers((("from", b"tick"),)))

    def _tick(self, now_ms: int) -> None:
        self.context.forward(Record("tick", f"{now_ms} {self.context.record_metadata}", now_ms))

    def close(self) -> None:
        pass


class Remind:
    """Sets, moves and cancels a timer of each key, and tells when it is called; some calls set another one."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.timers = KeyTimers(context, self.store_name, STRING, self._remind)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        if record.value is None:
            self.timers.cancel(record.key)
        else:
            before = self.timers.time_of(record.key)
            self.timers.set(record.key, max(record.timestamp, 0) + 5 * len(record.value))
            self.context.forward(record.with_value(f"{before} to {self.timers.time_of(record.key)}"))

    def _remind(self, key: str, at_ms: int) -> None:
        self.context.forward(Record(key, f"due at {at_ms}", at_ms))
        if at_ms % 3 == 0:
            self.timers.set(key, at_ms + 4)

    def close(self) -> None:
        pass


class Keep:
    """Puts each value and forwards the one before, at another time; scans now and then."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store(self.store_name)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        before = self.store.get(record.key)
        self.store.put(record.key, record.value)
        later = record.with_value(short(f"{before}>{record.value}")).with_timestamp(record.timestamp + 7)
        self.context.forward(later)
        if record.value is not None and len(record.value) == 1:
            self.context.forward(record.with_value(short(list(self.store.all()))))

    def close(self) -> None:
        pass


class Scan:
    """Puts into a window store, and forwards what it finds there."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store(self.store_name)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        self.store.put(record.key, record.value, record.timestamp)
        found = list(self.store.fetch_range(record.key, record.timestamp - 30, record.timestamp + 30))
        self.context.forward(record.with_value(short(found)))

    def close(self) -> None:
        pass


class Look:
    """Forwards what a global store has, with the key as it is."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store(self.store_name)

    def process(self, record: FixedKeyRecord[Any, Any]) -> None:
        found = None if record.key is None else self.store.get(record.key)
        self.context.forward(record.with_value(short(f"{record.value}~{found}")))

    def close(self) -> None:
        pass


class Remember:
    """Tells the value before each value of a table."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store(self.store_name)

    def transform(self, key: Any, value: str | None) -> str | None:
        before = self.store.get(key)
        self.store.put(key, value)
        return None if value is None else short(f"{before}<{value}")

    def close(self) -> None:
        pass


class Fill:
    """Fills a global store."""

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store(self.store_name)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            self.store.put(record.key, record.value)

    def close(self) -> None:
        pass


def time_in_value(record: ConsumerRecord[Any, Any], partition_time: int) -> int:
    """An event time that depends on the value; unknown for some, and a failure for others."""
    if record.value == "no time":
        message = "this record has no time"
        raise ValueError(message)
    if record.value == "five":
        return -1
    return partition_time + len(record.value) if record.value else record.timestamp
