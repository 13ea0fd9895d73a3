"""Answers of stores, page by page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, LONG, STRING, ValueAndTimestamp, Windowed
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.windows import Window
from riverrun.worker.answers import look_up
from riverrun.worker.queries import AnswerPage, KeyQuery, RangeQuery, Refusal, RefusalReason, SessionQuery, WindowQuery
from tests.stores import Context, commit

if TYPE_CHECKING:
    from riverrun.worker.queries import Query, StoreRow

MINUTE = 60_000


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def caching(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def opened(builder: StoreBuilder) -> tuple[Any, MemoryBackend]:
    backend = MemoryBackend()
    return open_store(builder, backend, Context()), backend


def pages(store: Any, builder: StoreBuilder, query: Query, limit: int) -> list[list[StoreRow]]:
    found, after = [], None
    while True:
        page = look_up(store, builder, query, limit, after)
        assert isinstance(page, AnswerPage)
        found.append(list(page.rows))
        after = page.after
        if after is None:
            return found


def entries(*, caching: bool) -> tuple[Any, StoreBuilder]:
    """Some committed, some not: one changed, one deleted, one new."""
    builder = StoreBuilder("s", StoreKind.TIMESTAMPED_KEY_VALUE, STRING, LONG, caching=caching)
    store, backend = opened(builder)
    for n, key in enumerate(["a", "b1", "b2", "b3", "c"]):
        store.put(key, ValueAndTimestamp(n, 10 + n))
    commit(store, backend)
    store.put("b1", ValueAndTimestamp(100, 50))
    store.put("b2", None)
    store.put("b4", ValueAndTimestamp(200, 60))
    return store, builder


def test_a_point_is_what_processing_sees(caching: bool) -> None:
    store, builder = entries(caching=caching)
    (((key, value, timestamp, *_),),) = pages(store, builder, KeyQuery(b"b1"), 10)
    assert (key, LONG.deserialize(value), timestamp) == (b"b1", 100, 50)
    assert pages(store, builder, KeyQuery(b"b2"), 10) == [[]]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (RangeQuery(), [b"a", b"b1", b"b3", b"b4", b"c"]),
        (RangeQuery(b"b1", b"b3"), [b"b1", b"b3"]),
        (RangeQuery(b"b3"), [b"b3", b"b4", b"c"]),
        (RangeQuery(reverse=True), [b"c", b"b4", b"b3", b"b1", b"a"]),
        (RangeQuery(b"a", b"b3", reverse=True), [b"b3", b"b1", b"a"]),
        (RangeQuery(prefix=b"b"), [b"b1", b"b3", b"b4"]),
        (RangeQuery(prefix=b"x"), []),
    ],
)
def test_ranges_come_in_order_of_keys_whatever_the_size_of_a_page(
    caching: bool, query: RangeQuery, expected: list[bytes], limit: int
) -> None:
    store, builder = entries(caching=caching)
    found = pages(store, builder, query, limit)
    assert [row.key for page in found for row in page] == expected
    assert all(len(page) <= limit for page in found)


def test_a_prefix_need_not_be_a_key() -> None:
    builder = StoreBuilder("s", StoreKind.KEY_VALUE, LONG, BYTES)
    store, _ = opened(builder)
    for n in (1, 2, 300):
        store.put(n, b"v")
    found = pages(store, builder, RangeQuery(prefix=LONG.serialize(1)[:7]), 1)
    assert [LONG.deserialize(row.key) for page in found for row in page] == [1, 2]


def windows(*, caching: bool) -> tuple[Any, StoreBuilder]:
    builder = StoreBuilder(
        "s",
        StoreKind.TIMESTAMPED_WINDOW,
        STRING,
        LONG,
        caching=caching,
        retention_ms=10 * MINUTE,
        window_size_ms=MINUTE,
    )
    store, backend = opened(builder)
    for minute in range(8):
        for key in "ab":
            store.put(key, ValueAndTimestamp(minute, minute), minute * MINUTE)
        if minute == 5:
            commit(store, backend)
    return store, builder


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_windows_of_one_key_come_by_start(caching: bool, limit: int) -> None:
    store, builder = windows(caching=caching)
    found = pages(store, builder, WindowQuery(b"a", b"a", MINUTE, 6 * MINUTE), limit)
    rows = [row for page in found for row in page]
    assert [(row.key, row.start, row.end, row.timestamp) for row in rows] == [
        (b"a", n * MINUTE, (n + 1) * MINUTE, n) for n in range(1, 7)
    ]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_windows_of_all_keys_are_each_there_once(caching: bool, limit: int) -> None:
    store, builder = windows(caching=caching)
    rows = [row for page in pages(store, builder, WindowQuery(), limit) for row in page]
    assert sorted((row.key, row.start) for row in rows) == [(k, n * MINUTE) for k in (b"a", b"b") for n in range(8)]
    rows = [row for page in pages(store, builder, WindowQuery(b"b", None, 2 * MINUTE), limit) for row in page]
    assert sorted((row.key, row.start) for row in rows) == [(b"b", n * MINUTE) for n in range(2, 8)]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_sessions_of_one_key_and_of_all(caching: bool, limit: int) -> None:
    builder = StoreBuilder("s", StoreKind.SESSION, STRING, LONG, caching=caching, retention_ms=10 * MINUTE)
    store, _ = opened(builder)
    for key in "ab":
        for n in range(3):
            store.put(Windowed(key, Window(n * 1000, n * 1000 + 500)), n)
    rows = [row for page in pages(store, builder, SessionQuery(b"a"), limit) for row in page]
    assert [(row.key, row.start, row.end) for row in rows] == [(b"a", n * 1000, n * 1000 + 500) for n in range(3)]
    rows = [row for page in pages(store, builder, SessionQuery(), limit) for row in page]
    assert sorted((row.key, row.start) for row in rows) == [(k, n * 1000) for k in (b"a", b"b") for n in range(3)]


def test_a_versioned_store_says_what_a_key_is_and_what_it_was() -> None:
    builder = StoreBuilder("s", StoreKind.VERSIONED, STRING, LONG, retention_ms=MINUTE)
    store, _ = opened(builder)
    store.put("a", 1, 100)
    store.put("a", 2, 200)

    def values(query: KeyQuery) -> list[tuple[int, int | None]]:
        return [
            (LONG.deserialize(row.value), row.timestamp) for page in pages(store, builder, query, 1) for row in page
        ]

    assert values(KeyQuery(b"a")) == [(2, 200)]
    assert values(KeyQuery(b"a", 150)) == [(1, 100)]
    assert values(KeyQuery(b"a", 99)) == []
    other, plain = entries(caching=False)
    assert isinstance(look_up(other, plain, KeyQuery(b"a", 5), 1, None), Refusal)


def test_a_store_that_cannot_be_asked_that_says_so() -> None:
    store, builder = entries(caching=False)
    refusal = look_up(store, builder, WindowQuery(), 10, None)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.UNKNOWN_QUERY


def test_reads_leave_nothing_in_a_cache_that_was_told_to_forget_them() -> None:
    store, builder = entries(caching=True)
    look_up(store, builder, KeyQuery(b"nobody"), 1, None)
    store.forget_reads(0)
    known = [key for key in (b"nobody", b"b1", b"b2", b"b4") if key in store._cache.entries]
    assert known == [b"b1", b"b2", b"b4"], "only what is dirty stays"
    assert look_up(store, replace(builder), KeyQuery(b"a"), 1, None).rows  # type: ignore[union-attr]
