"""Session stores and buffers: in memory and in RocksDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, Window, Windowed
from riverrun.errors import CorruptStateError
from riverrun.records import Change, RecordMetadata
from riverrun.serde.serdes import LONG, STRING
from riverrun.state.api import ChangelogRecord, StateBackend, StoreBuilder, StoreKind
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.buffer import BufferedChange
from riverrun.state.stores.opening import open_store
from tests.changelogs import Batch
from tests.stores import Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import CachedUpdate

MINUTE = 60_000


def sessions(backend: Any, *, caching: bool, retention_ms: int = 10 * MINUTE) -> Any:
    builder = StoreBuilder("store", StoreKind.SESSION, STRING, LONG, caching=caching, retention_ms=retention_ms)
    return open_store(builder, backend, Context())


def buffer(backend: Any, context: Context | None = None) -> Any:
    return open_store(StoreBuilder("store", StoreKind.BUFFER, STRING, LONG), backend, context or Context())


def session(key: str, start: int, end: int) -> Windowed[str]:
    return Windowed(key, Window(start, end))


def test_sessions_are_found_by_key_and_times_before_and_after_a_restart(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    store = sessions(backend, caching=caching)
    for n, (start, end) in enumerate([(0, 5), (10, 10), (20, 40), (70_000, 90_000)]):
        store.put(session("a", start, end), n)
        store.put(session("ab", start, end), 10 + n)
        if n == 1:
            commit(store, backend)
    for round_ in range(3):
        assert list(store.find_sessions("a", 6, 70_000)) == [
            (session("a", 10, 10), 1),
            (session("a", 20, 40), 2),
            (session("a", 70_000, 90_000), 3),
        ]
        assert [n for _, n in store.find_sessions("a", 0, 10)] == [0, 1]
        assert [n for _, n in store.fetch("ab")] == [10, 11, 12, 13]
        assert store.fetch_session("a", 20, 40) == 2
        assert store.fetch_session("a", 20, 41) is None
        assert len(list(store.all())) == 8
        if round_ == 0:
            commit(store, backend)
        else:
            store = sessions(reopen(), caching=caching)


def test_a_removed_session_is_gone_and_a_tombstone_says_so(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend = reopen()
    store = sessions(backend, caching=caching)
    store.put(session("A", 10, 25), 1)
    key = bytes.fromhex("410000000000000019000000000000000a")
    assert commit(store, backend) == [ChangelogRecord(key, LONG.serialize(1), 7)]
    store.remove(session("A", 10, 25))
    assert list(store.fetch("A")) == []
    assert commit(store, backend) == [ChangelogRecord(key, None, 7)]
    assert list(sessions(reopen(), caching=caching).all()) == []


def test_a_session_is_kept_until_its_end_is_older_than_the_retention(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    store = sessions(backend, caching=caching)
    store.put(session("a", 0, 5), 1)
    store.put(session("a", 9 * MINUTE, 10 * MINUTE + 5), 2)
    commit(store, backend)
    assert len(list(store.fetch("a"))) == 2
    store.put(session("b", 0, 10 * MINUTE + 6), 3)
    assert store.fetch_session("a", 0, 5) is None
    assert [n for _, n in store.fetch("a")] == [2]
    store.put(session("a", 1, 5), 4)
    assert store.expired_puts == 1
    store.put(session("b", 0, 30 * MINUTE), 5)
    commit(store, backend)
    assert [n for name in backend.tables() for _, n in backend.table(name).scan(None, None)] == [LONG.serialize(5)]
    assert [n for _, n in sessions(reopen(), caching=caching).all()] == [5]


def test_a_changelog_restores_the_same_sessions(reopen: Callable[[], StateBackend], caching: bool) -> None:
    origin, log = MemoryBackend(), list[ChangelogRecord]()
    store = sessions(origin, caching=caching)
    for minute in range(30):
        store.put(session("a", minute * MINUTE, minute * MINUTE + 1), minute)
        store.remove(session("a", (minute - 3) * MINUTE, (minute - 3) * MINUTE + 1))
        log += commit(store, origin)
    backend = reopen()
    copy = sessions(backend, caching=caching)
    for start in range(0, len(log), 7):
        backend.write(copy.restore(Batch(log[start : start + 7])), {})
    assert [n for _, n in copy.all()] == [n for _, n in store.all()] == [27, 28, 29]


def test_held_back_sessions_are_forwarded_with_their_ends_and_what_they_replaced() -> None:
    backend, updates = MemoryBackend(), list["CachedUpdate"]()
    store = sessions(backend, caching=True)
    assert store.set_flush_listener(updates.extend, send_old_values=True)
    store.put(session("a", 0, 5), 1)
    commit(store, backend)
    store.remove(session("a", 0, 5))
    store.put(session("a", 0, 8), 2)
    store.put(session("b", 3, 3), 1)
    store.remove(session("b", 3, 3))
    updates.clear()
    commit(store, backend)
    assert [(u.key, u.new, u.old, u.timestamp) for u in updates] == [
        (session("a", 0, 5), None, 1, 5),
        (session("a", 0, 8), 2, None, 8),
    ]


def test_a_buffer_gives_keys_in_order_of_their_first_times_with_their_last_updates(
    reopen: Callable[[], StateBackend],
) -> None:
    backend = reopen()
    context = Context(record_metadata=RecordMetadata("in", 3, 17))
    store = buffer(backend, context)
    store.put(5, "b", Change(1, None), 5, ())
    store.put(2, "c", Change(2, 9), 2, (("h", None),))
    store.put(9, "b", Change(3, 1), 9, (("h", b"x"),))
    store.put(5, "a", Change(None, 4), 5, ())
    size = store.size_bytes
    for _ in range(2):
        assert (len(store), store.first_time, store.size_bytes) == (3, 2, size)
        assert store.prior_value("c") == (True, 9)
        assert store.prior_value("b") == (True, None)
        assert store.prior_value("x") == (False, None)
        commit(store, backend)
        backend = reopen()
        store = buffer(backend, context)
    found = [store.pop() for _ in range(3)]
    assert [(key, change) for key, change, _ in found] == [
        ("c", Change(2, 9)),
        ("a", Change(None, 4)),
        ("b", Change(3, 1)),
    ]
    assert [(e.timestamp, e.headers, e.metadata) for _, _, e in found] == [
        (2, (("h", None),), RecordMetadata("in", 3, 17)),
        (5, (), RecordMetadata("in", 3, 17)),
        (9, (("h", b"x"),), RecordMetadata("in", 3, 17)),
    ]
    assert (len(store), store.first_time, store.size_bytes) == (0, None, 0)


def test_what_was_taken_out_of_a_buffer_is_a_tombstone_in_its_changelog(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = buffer(backend)
    store.put(1, "a", Change(1, None), 1, ())
    log = commit(store, backend)
    assert log[0].headers == (("v", b"\3"),)
    store.put(2, "b", Change(2, None), 2, ())
    store.pop()
    log += commit(store, backend)
    assert [(r.key, r.value is None) for r in log] == [(b"a", False), (b"b", False), (b"a", True)]
    copy_backend = MemoryBackend()
    copy = buffer(copy_backend)
    copy_backend.write(copy.restore(Batch(log)), {})
    assert (len(copy), copy.first_time) == (1, 2)


def test_what_is_buffered_for_long_does_not_ask_for_commits() -> None:
    backend = MemoryBackend()
    store = buffer(backend)
    store.put(1, "a", Change(1, None), 1, ())
    assert store.held_back_bytes() > 0
    commit(store, backend)
    assert (len(store), store.held_back_bytes()) == (1, 0)


def test_a_changelog_of_another_layout_is_refused() -> None:
    store = buffer(MemoryBackend())
    with pytest.raises(CorruptStateError, match="layout version 3"):
        store.restore(Batch([ChangelogRecord(b"a", b"value", 1, (("v", b"\2"),))]))


def test_bytes_that_are_no_buffered_change_are_refused() -> None:
    with pytest.raises(CorruptStateError, match="cannot be read"):
        BufferedChange.decode(b"nonsense")


def test_a_buffered_value_does_not_change_with_the_object_it_was_made_of() -> None:
    store: Any = open_store(StoreBuilder("store", StoreKind.BUFFER, STRING, JSON), MemoryBackend(), Context())
    value = [1]
    store.put(1, "a", Change(value, None), 1, ())
    value.append(2)
    assert store.pop()[1] == Change([1], None)
