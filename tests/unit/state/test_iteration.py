"""The order of every iteration, forwards and backwards: in memory and in RocksDB, with and without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import Window, Windowed
from riverrun.serde.serdes import LONG, STRING
from riverrun.state.api import StateBackend, StoreBuilder, StoreKind
from riverrun.state.stores.opening import open_store
from tests.stores import Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE = 60_000


@pytest.fixture
def windows(reopen: Callable[[], StateBackend]) -> Any:
    """Windows of two keys; some committed, one of those deleted and one changed since, some not committed."""
    backend = reopen()
    builder = StoreBuilder("store", StoreKind.WINDOW, STRING, LONG, retention_ms=10 * MINUTE, window_size_ms=MINUTE)
    store: Any = open_store(builder, backend, Context())
    for minute in (0, 1, 6):
        store.put("a", minute, minute * MINUTE)
        store.put("b", minute, minute * MINUTE)
    commit(store, backend)
    store.put("a", None, 0)
    store.put("b", 10, MINUTE)
    store.put("c", 9, 9 * MINUTE)
    return store


A1, A6 = ("a", MINUTE, 1), ("a", 6 * MINUTE, 6)
B0, B1, B6, C9 = ("b", 0, 0), ("b", MINUTE, 10), ("b", 6 * MINUTE, 6), ("c", 9 * MINUTE, 9)


def test_windows_come_by_segment_then_key_and_backwards_in_exactly_the_other_order(windows: Any) -> None:
    expected = [A1, B0, B1, A6, B6, C9]
    assert list(windows.all()) == expected
    assert list(windows.backward_all()) == expected[::-1]


def test_windows_that_came_and_went_since_the_last_commit_are_not_looked_at(windows: Any) -> None:
    assert list(windows.fetch_range("a", 0, 9 * MINUTE)) == [A1[1:], A6[1:]]
    for minute in (2, 3, 4):
        windows.put("a", minute, minute * MINUTE)
        windows.put("a", None, minute * MINUTE)
    windows.put("a", 3, 3 * MINUTE)
    windows.put("a", None, MINUTE)
    assert list(windows.fetch_range("a", 0, 9 * MINUTE)) == [(3 * MINUTE, 3), A6[1:]]
    noted = windows._changed.of(b"a", b"a", b"b")
    assert [int.from_bytes(store_key[1:9]) // MINUTE for store_key in noted] == [0, 1, 3]


@pytest.mark.parametrize(("first", "last"), [(0, 20), (1, 6), (1, 5), (7, 8), (6, 1)])
def test_windows_of_a_time_range_count_by_their_start_both_ends_inclusive(windows: Any, first: int, last: int) -> None:
    time_from, time_to = first * MINUTE, last * MINUTE
    expected = [entry for entry in windows.all() if time_from <= entry[1] <= time_to]
    assert list(windows.fetch_all(time_from, time_to)) == expected
    assert list(windows.backward_fetch_all(time_from, time_to)) == expected[::-1]


@pytest.mark.parametrize(("lowest", "highest"), [("a", "b"), ("b", None), (None, "a"), ("c", "a")])
def test_windows_of_a_key_range_have_both_ends_too(windows: Any, lowest: str | None, highest: str | None) -> None:
    in_range = [e for e in windows.all() if (lowest or "") <= e[0] <= (highest or "z")]
    assert list(windows.fetch_keys(lowest, highest, 0, 20 * MINUTE)) == in_range
    assert list(windows.backward_fetch_keys(lowest, highest, 0, 20 * MINUTE)) == in_range[::-1]


def test_the_windows_of_one_key_come_by_time(windows: Any) -> None:
    assert list(windows.fetch_range("b", 0, 6 * MINUTE)) == [(0, 0), (MINUTE, 10), (6 * MINUTE, 6)]
    assert list(windows.backward_fetch_range("b", 0, 6 * MINUTE)) == [(6 * MINUTE, 6), (MINUTE, 10), (0, 0)]
    assert list(windows.backward_fetch_range("b", MINUTE, MINUTE)) == [(MINUTE, 10)]


def test_no_iteration_shows_what_has_expired(windows: Any) -> None:
    windows.put("a", 20, 16 * MINUTE)  # the first start that is kept is 6 min and 1 ms
    expected = [C9, ("a", 16 * MINUTE, 20)]
    assert list(windows.all()) == list(windows.fetch_all(0, 20 * MINUTE)) == expected
    assert (
        list(windows.backward_all()) == list(windows.backward_fetch_keys(None, None, 0, 20 * MINUTE)) == expected[::-1]
    )
    assert list(windows.backward_fetch_range("b", 0, 20 * MINUTE)) == []


def session(key: str, start: int, end: int) -> Windowed[str]:
    return Windowed(key, Window(start * MINUTE, end * MINUTE))


def test_sessions_are_found_by_key_or_key_range_in_both_directions(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    builder = StoreBuilder("store", StoreKind.SESSION, STRING, LONG, caching=caching, retention_ms=10 * MINUTE)
    store: Any = open_store(builder, backend, Context())
    for key in ("a", "b"):
        for start, end in ((0, 1), (2, 3), (4, 7)):
            store.put(session(key, start, end), start)
    commit(store, backend)
    store.remove(session("a", 2, 3))
    store.put(session("b", 8, 9), 8)
    assert [s.window.start // MINUTE for s, _ in store.fetch("b")] == [0, 2, 4, 8]
    assert [s.window.start // MINUTE for s, _ in store.backward_fetch("b")] == [8, 4, 2, 0]
    assert [s.window.start // MINUTE for s, _ in store.find_sessions("b", 3 * MINUTE, 4 * MINUTE)] == [2, 4]
    assert [s.window.start // MINUTE for s, _ in store.backward_find_sessions("b", 3 * MINUTE, 4 * MINUTE)] == [4, 2]
    everything = [("a", 0), ("b", 0), ("b", 2), ("a", 4), ("b", 4), ("b", 8)]
    assert [(s.key, value) for s, value in store.all()] == everything
    assert [(s.key, value) for s, value in store.backward_fetch_keys(None, None)] == everything[::-1]
    assert [(s.key, value) for s, value in store.fetch_keys("b", "z")] == [e for e in everything if e[0] == "b"]
    found = store.find_sessions_of_keys(None, "a", 2 * MINUTE, 4 * MINUTE)
    assert [(s.key, value) for s, value in found] == [("a", 4)]
    found = store.backward_find_sessions_of_keys("a", None, 3 * MINUTE, 4 * MINUTE)
    assert [(s.key, value) for s, value in found] == [("b", 4), ("a", 4), ("b", 2)]
    store.put(session("c", 17, 18), 17)  # sessions that ended before minute 8 have expired
    assert [(s.key, value) for s, value in store.backward_fetch_keys(None, None)] == [("c", 17), ("b", 8)]
