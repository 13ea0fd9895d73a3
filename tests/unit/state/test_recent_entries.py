"""Stores that remember their newest entries find what a search of everything finds, however little they may remember."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import Window, Windowed
from riverrun.serde.serdes import LONG, STRING
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.state.entries import ENTRY_OVERHEAD_BYTES, RecentEntries
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from tests.changelogs import Batch
from tests.stores import CHANGELOG, Context, commit

RETENTION_MS = 60_000
LENGTH_MS = 20_000
TIMES = st.integers(0, 18).map(lambda n: n * 10_000)
"""Over three times the retention, so that some are late and some expired."""
KEYS = st.sampled_from(["a", "ab"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, TIMES),
        st.tuples(st.just("put"), KEYS, TIMES),
        st.tuples(st.just("remove"), KEYS, TIMES),
        st.tuples(st.sampled_from(["commit", "forget", "reopen", "restore"]), st.just(""), st.just(0)),
        st.tuples(st.just("find"), KEYS, TIMES),
    ),
    max_size=60,
)
LIMITS = st.sampled_from([0, ENTRY_OVERHEAD_BYTES * 3, ENTRY_OVERHEAD_BYTES * 8, 10**7])


def reopened(builder: StoreBuilder, store: Any, backend: Any, limit: int, what: str) -> Any:
    """The store as its next owner opens it: as it lies there, or with its last changelog records restored once more."""
    records = commit(store, backend)
    times = store.times() if builder.kind is StoreKind.SESSION else None
    store = open_store(builder, backend, Context(kept_bytes=limit))
    if what == "restore":
        backend.write(store.restore(Batch(records)), {CHANGELOG: 1})
    if times is not None:
        store.resume(times)
    return store


@settings(max_examples=150, deadline=None)
@given(STEPS, LIMITS, st.booleans())
def test_sessions_are_found_whatever_is_remembered(
    steps: list[tuple[str, str, int]], limit: int, caching: bool
) -> None:
    builder = StoreBuilder("store", StoreKind.SESSION, STRING, LONG, caching=caching, retention_ms=RETENTION_MS)
    backend: Any = MemoryBackend()
    store: Any = open_store(builder, backend, Context(kept_bytes=limit))
    model: dict[tuple[str, int], int] = {}
    highest = -1
    for number, (what, key, time) in enumerate(steps):
        end = time + LENGTH_MS
        if what in ("put", "remove"):
            store.put(Windowed(key, Window(time, end)), number if what == "put" else None)
            highest = max(highest, end)
            model[key, time] = number
            if what == "remove":
                del model[key, time]
        elif what == "commit":
            commit(store, backend)
        elif what == "forget":
            store.forget_reads()
        elif what in ("reopen", "restore"):
            store = reopened(builder, store, backend, limit, what)
        model = {found: value for found, value in model.items() if found[1] + LENGTH_MS >= highest - RETENTION_MS}
        if what == "find":
            expected = sorted((s, v) for (k, s), v in model.items() if k == key and s + LENGTH_MS >= time and s <= end)
            assert [(w.window.start, v) for w, v in store.find_sessions(key, time, end)] == expected
            backwards = store.backward_find_sessions(key, time, end)
            assert [(w.window.start, v) for w, v in backwards] == expected[::-1]


@settings(max_examples=150, deadline=None)
@given(STEPS, LIMITS)
def test_partners_of_a_join_are_found_whatever_is_remembered(steps: list[tuple[str, str, int]], limit: int) -> None:
    builder = StoreBuilder("store", StoreKind.JOIN_WINDOW, STRING, LONG, retention_ms=RETENTION_MS)
    backend: Any = MemoryBackend()
    store: Any = open_store(builder, backend, Context(kept_bytes=limit))
    model: list[tuple[str, int, int]] = []
    for number, (what, key, time) in enumerate(steps):
        if what == "put":
            store.put(key, number, time)
            model.append((key, time, number))
        elif what == "commit":
            commit(store, backend)
        elif what in ("reopen", "restore"):
            store = reopened(builder, store, backend, limit, what)
        model = [entry for entry in model if entry[1] > store.observed_time - RETENTION_MS]
        if what == "find":
            expected = sorted((t, n) for k, t, n in model if k == key and time <= t <= time + LENGTH_MS)
            assert list(store.fetch_range(key, time, time + LENGTH_MS)) == expected


@pytest.mark.parametrize("entries_per_key", [1, 100], ids=["many keys", "a hot key"])
def test_what_is_remembered_is_bounded(entries_per_key: int) -> None:
    recent = RecentEntries()
    recent.begin_after(-1)
    limit = 1_000 * ENTRY_OVERHEAD_BYTES
    for n in range(10_000):
        recent.put(b"%d" % (n // entries_per_key), n.to_bytes(8) + b"\0" * 8, b"", 0)
        recent.forget(0, limit)
        assert sum(map(len, recent.by_key.values())) <= 1_000 + 1
    assert 9_000 <= recent.known_after < 9_999


def test_expired_entries_of_a_hot_key_are_not_kept() -> None:
    recent = RecentEntries()
    recent.begin_after(-1)
    for n in range(10_000):
        recent.put(b"k", n.to_bytes(8) + b"\0" * 8, b"", n - 20)
    assert [int.from_bytes(suffix[:8]) for suffix, _ in recent.find(b"k", b"")] == list(range(9_979, 10_000))
