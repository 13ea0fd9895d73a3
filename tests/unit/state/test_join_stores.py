"""The stores of stream-stream joins, in memory and in RocksDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverrun.serde.internal import JoinSideKey, JoinSideValue, decode_list, join_side_key, join_side_value
from riverrun.serde.serdes import STRING
from riverrun.state.api import StateBackend, StoreBuilder, StoreKind
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from tests.changelogs import Batch
from tests.presence import present
from tests.stores import CHANGELOG, Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE = 60_000


def window_store(backend: Any, retention_ms: int = 10 * MINUTE) -> Any:
    builder = StoreBuilder("store", StoreKind.JOIN_WINDOW, STRING, STRING, retention_ms=retention_ms)
    return open_store(builder, backend, Context())


def list_store(backend: Any) -> Any:
    keys, values = join_side_key(STRING), join_side_value(STRING, STRING)
    return open_store(StoreBuilder("store", StoreKind.LIST_VALUE, keys, values), backend, Context())


def test_equal_keys_and_times_keep_all_values_in_order_across_restarts(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = window_store(backend)
    for value in "ca":
        store.put("k", value, 5)
    commit(store, backend)
    backend = reopen()
    store = window_store(backend)
    store.put("k", "b", 5)
    store.put("k", "first", 4)
    store.put("kk", "other", 5)
    assert list(store.fetch_range("k", 0, 5)) == [(4, "first"), (5, "c"), (5, "a"), (5, "b")]
    assert list(store.fetch_range("k", 5, 9)) == [(5, "c"), (5, "a"), (5, "b")]
    commit(store, backend)
    assert sorted(value for _, _, value in store.all()) == ["a", "b", "c", "first", "other"]


def test_records_older_than_the_retention_are_not_kept_or_found(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = window_store(backend, 2 * MINUTE)
    store.put("k", "old", MINUTE)
    commit(store, backend)
    store.put("k", "new", 3 * MINUTE - 1)
    assert [v for _, v in store.fetch_range("k", 0, 9 * MINUTE)] == ["old", "new"]
    store.put("other", "x", 3 * MINUTE)
    store.put("k", "late", MINUTE)
    assert ([v for _, v in store.fetch_range("k", 0, 9 * MINUTE)], store.expired_puts) == (["new"], 1)
    store.put("k", "far", 100 * MINUTE)
    commit(store, backend)
    tables = [name for name in backend.tables() if name != "store.state"]
    assert [value for name in tables for _, value in backend.table(name).scan(None, None)] == [b"far"]
    assert window_store(reopen(), 2 * MINUTE).observed_time == 100 * MINUTE


def test_a_window_store_is_restored_with_its_time_and_its_sequence(reopen: Callable[[], StateBackend]) -> None:
    source = window_store(MemoryBackend())
    for value in "ab":
        source.put("k", value, 5)
    records = list(source.changelog())
    assert [(r.key.hex(), r.value, r.timestamp) for r in records] == [
        ("6b000000000000000500000001", b"a", 5),
        ("6b000000000000000500000002", b"b", 5),
    ]
    backend = reopen()
    store = window_store(backend)
    backend.write(store.restore(Batch(records[:1])), {CHANGELOG: 1})
    backend.write(store.restore(Batch(records[1:])), {CHANGELOG: 2})
    store.put("k", "c", 5)
    assert [v for _, v in store.fetch_range("k", 5, 5)] == ["a", "b", "c"]
    assert store.observed_time == 5


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "delete"]), st.integers(0, 6), st.booleans(), st.sampled_from("ab")),
        st.just(("commit", 0, False, "")),
        st.just(("all", 0, False, "")),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_list_store_is_a_sorted_map_of_lists(steps: list[tuple[str, int, bool, str]]) -> None:
    backend = MemoryBackend()
    store = list_store(backend)
    model: dict[JoinSideKey, list[str]] = {}

    def expected() -> list[tuple[JoinSideKey, str]]:
        return [(key, value) for key in sorted(model) for value in model[key]]

    for number, (what, time, is_left, name) in enumerate(steps):
        key = JoinSideKey(time, is_left, name)
        if what == "add":
            store.add(key, JoinSideValue(is_left, str(number)), 7)
            model.setdefault(key, []).append(str(number))
        elif what == "delete":
            store.delete(key, 8)
            model.pop(key, None)
        elif what == "commit":
            commit(store, backend)
        else:
            assert [(k, v.value) for k, v in store.all()] == expected()
    assert [(k, v.value) for k, v in store.all()] == expected()
    commit(store, backend)
    assert [(k, v.value) for k, v in list_store(backend).all()] == expected()


def test_what_came_and_went_within_a_commit_is_not_logged(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = list_store(backend)
    kept, gone = JoinSideKey(1, True, "k"), JoinSideKey(2, False, "k")
    store.add(kept, JoinSideValue(True, "x"), 7)
    store.add(gone, JoinSideValue(False, "y"), 7)
    store.delete(gone, 8)
    (record,) = commit(store, backend)
    assert (record.key.hex(), decode_list(present(record.value))) == ("0000000000000001016b", [b"\x01x"])
    store.delete(kept, 8)
    (record,) = commit(store, backend)
    assert record.value is None
    assert list(list_store(reopen()).all()) == []


def test_entries_may_be_deleted_while_they_are_read(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = list_store(backend)
    for time in range(4):
        store.add(JoinSideKey(time, True, "k"), JoinSideValue(True, str(time)), 7)
        if time == 1:
            commit(store, backend)
    seen = []
    for key, value in store.all():
        seen.append(value.value)
        store.delete(key, 8)
    assert seen == ["0", "1", "2", "3"]
    assert list(store.all()) == []


def test_bytes_that_are_no_list_are_refused() -> None:
    with pytest.raises(ValueError, match="begins with 0x01"):
        decode_list(b"\x00\x00\x00\x00\x01")
