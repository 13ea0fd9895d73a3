"""The state stores of a worker, read while it runs (interactive queries; `KafkaStreams.store`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import InvalidStateStoreError
from riverrun.service.routing import store_places
from riverrun.state.api import WINDOWED
from riverrun.windows import MAX_TIME_MS, Window, Windowed
from riverrun.worker.answers import MAX_ROWS
from riverrun.worker.queries import KeyQuery, RangeQuery, Refusal, RefusalReason, SessionQuery, StoreQuery, WindowQuery

if TYPE_CHECKING:
    from riverrun.records import TaskId
    from riverrun.service.routing import StorePlace
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries import AnswerPage, Query, StoreRow
    from riverrun.worker.streams_instance import StreamsInstance

_HINTS = {
    RefusalReason.NOT_HERE: "Query the instance that has it.",
    RefusalReason.RESTORING: "Retry when the worker is running.",
    RefusalReason.FAILED: "Ask again.",
}


class Entry(NamedTuple):
    """A key of a store with its value.

    Args:
        key: The key; a `Windowed` key in window and session stores.
        value: The value, as the store's serde reads it.
        timestamp: Time of its last update, ms since the epoch, if the store has it.
    """

    key: Any
    value: Any
    timestamp: int | None = None


class ReadOnlyStore:
    """The current content of a worker's store: the result of processing, committed or not.

    It has the partitions whose tasks run in this instance. New records may change it between two calls.
    """

    def __init__(self, instance: StreamsInstance, name: str, *, stale: bool = False) -> None:
        self._instance = instance
        self._stale = stale
        self.name = name

    def __getitem__(self, key: Any) -> Any:
        """Return the value of a key.

        Raises:
            KeyError: If there is none.
            InvalidStateStoreError: As `get` raises it.
        """
        found = self._entry(key, None)
        if found is None:
            raise KeyError(key)
        return found.value

    def get(self, key: Any, default: Any = None, *, as_of: int | None = None) -> Any:
        """Return the value of a key; key-value and versioned stores.

        Args:
            key: The key, before serialization.
            default: Returned if there is no value.
            as_of: Versioned stores: time of the value, ms since the epoch. Default: now.

        Raises:
            InvalidStateStoreError: If another instance has the key, its task is being restored, or the store has no
                such keys.
        """
        found = self._entry(key, as_of)
        return default if found is None else found.value

    def range(self, lower: Any = None, upper: Any = None, *, reverse: bool = False) -> Iterator[Entry]:
        """Return entries by key, in the order of their bytes within each partition; key-value stores.

        Args:
            lower: First key, inclusive; None is an open end.
            upper: Last key, inclusive; None is an open end.
            reverse: Whether to return the last key first.

        Raises:
            InvalidStateStoreError: If a task is being restored, or the store does not support it.
        """
        place = self._place()
        first, last = (None if key is None else place.builder.key_serde.serialize(key) for key in (lower, upper))
        return self._everywhere(place, RangeQuery(first, last, reverse=reverse))

    def all(self) -> Iterator[Entry]:
        """Return all entries; all windows in window and session stores.

        Raises:
            InvalidStateStoreError: If a task is being restored, or the store does not support it.
        """
        return self.fetch() if self._place().builder.kind in WINDOWED else self.range()

    def fetch(self, key: Any = None, time_from: int = 0, time_to: int = MAX_TIME_MS) -> Iterator[Entry]:
        """Return windows or sessions; window and session stores.

        Args:
            key: The key; None for all keys.
            time_from: Earliest start of a window, or end of a session, ms since the epoch.
            time_to: Latest start of a window or session, ms.

        Raises:
            InvalidStateStoreError: If another instance has the key, a task is being restored, or the store has no windows.
        """
        place = self._place()
        raw = None if key is None else place.builder.key_serde.serialize(key)
        is_session = place.builder.kind.value == "session"
        query = SessionQuery(raw, time_from, time_to) if is_session else WindowQuery(raw, raw, time_from, time_to)
        if raw is None:
            return self._everywhere(place, query)
        return self._entries(place.builder, place.task_of(raw), query)

    def _entry(self, key: Any, as_of: int | None) -> Entry | None:
        place = self._place()
        raw = place.builder.key_serde.serialize(key)
        return next(self._entries(place.builder, place.task_of(raw), KeyQuery(raw, as_of)), None)

    def _everywhere(self, place: StorePlace, query: Query) -> Iterator[Entry]:
        status = self._instance.status()
        here = status.active | status.restoring.keys() | (status.standby if self._stale else frozenset())
        tasks: list[TaskId | None] = [task for task in place.tasks if task in here]
        for task in tasks if place.tasks else [None]:
            yield from self._entries(place.builder, task, query)

    def _entries(self, builder: StoreBuilder, task: TaskId | None, query: Query) -> Iterator[Entry]:
        after = None
        while True:
            page = self._page(StoreQuery(self.name, task, query, MAX_ROWS, after, allows_standby=self._stale))
            for row in page.rows:
                yield _entry_of(builder, row)
            after = page.after
            if after is None:
                return

    def _page(self, question: StoreQuery) -> AnswerPage:
        answer = self._instance.ask(question)
        if not isinstance(answer, Refusal):
            return answer
        assignment, message = self._instance.assignment, answer.message
        server = assignment.servers.get(str(question.task)) if assignment is not None else None
        if answer.reason is RefusalReason.NOT_HERE and server:
            message = f"{message}, but at {server}"
        raise InvalidStateStoreError(message, hint=_HINTS.get(answer.reason))

    def _place(self) -> StorePlace:
        return place_of(self._instance, self.name)


class ReadOnlyStores(Mapping[str, ReadOnlyStore]):
    """The stores of a worker by name."""

    def __init__(self, instance: StreamsInstance) -> None:
        self._instance = instance

    def __getitem__(self, name: str) -> ReadOnlyStore:
        """Return a store.

        Raises:
            KeyError: If there is no such store.
            InvalidStateStoreError: If the worker has not started.
        """
        if name not in places_of(self._instance):
            raise KeyError(name)
        return ReadOnlyStore(self._instance, name)

    def __iter__(self) -> Iterator[str]:
        """Return their names."""
        return iter(sorted(places_of(self._instance)))

    def __len__(self) -> int:
        """Return their number."""
        return len(places_of(self._instance))


def place_of(instance: StreamsInstance, name: str) -> StorePlace:
    """Return the places of a store's parts.

    Raises:
        InvalidStateStoreError: If there is no such store, or the worker has not read its topics yet.
    """
    places = places_of(instance)
    if name not in places:
        message = f"{instance.application.id} has no store {name!r}"
        raise InvalidStateStoreError(message, hint=f"It has: {', '.join(sorted(places)) or 'none'}")
    return places[name]


def places_of(instance: StreamsInstance) -> dict[str, StorePlace]:
    """Return the places of each store's parts.

    Raises:
        InvalidStateStoreError: If the worker has not read its topics yet.
    """
    layout, application = instance.layout, instance.application
    if layout is None:
        message = f"{application.id} is starting"
        raise InvalidStateStoreError(message, hint=_HINTS[RefusalReason.RESTORING])
    return store_places(application.topology, layout, application.id)


def _entry_of(builder: StoreBuilder, row: StoreRow) -> Entry:
    key, value = builder.key_serde.deserialize(row.key), builder.value_serde.deserialize(row.value)
    if row.start is not None and row.end is not None and builder.kind in WINDOWED:
        key = Windowed(key, Window(row.start, row.end))
    return Entry(key, value, row.timestamp)
