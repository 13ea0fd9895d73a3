"""One contract for every store: in memory and in RocksDB, with and without a cache."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverrun.errors import CorruptStateError, DeserializationError, StateError
from riverrun.records import RecordMetadata, ValueAndTimestamp
from riverrun.serde.serdes import LONG, STRING
from riverrun.state.api import ChangelogRecord, StateBackend, StoreBuilder, StoreKind
from riverrun.state.memory import MemoryBackend
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.state.stores.opening import open_store
from riverrun.windows import MAX_TIME_MS, Window, Windowed
from tests.changelogs import Batch
from tests.stores import CHANGELOG, Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.state.api import CachedUpdate

MINUTE = 60_000


def key_value(*, caching: bool, kind: StoreKind = StoreKind.TIMESTAMPED_KEY_VALUE) -> StoreBuilder:
    return StoreBuilder("store", kind, STRING, LONG, caching=caching)


def window(*, caching: bool, retention_ms: int = 10 * MINUTE) -> StoreBuilder:
    return StoreBuilder(
        "store",
        StoreKind.TIMESTAMPED_WINDOW,
        STRING,
        LONG,
        caching=caching,
        retention_ms=retention_ms,
        window_size_ms=MINUTE,
    )


def vt(value: int, timestamp: int = 5) -> ValueAndTimestamp[int]:
    return ValueAndTimestamp(value, timestamp)


def test_a_value_can_be_read_before_and_after_the_commit_and_after_a_restart(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=caching), backend, Context())
    store.put("a", vt(1))
    assert store.get("a") == vt(1)
    commit(store, backend, 42)
    assert store.get("a") == vt(1)
    again: Any = open_store(key_value(caching=caching), reopen(), Context())
    assert again.get("a") == vt(1)
    assert reopen().positions() == {CHANGELOG: 42}


def test_a_value_that_cannot_be_read_is_not_taken_for_none_afterwards(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    backend.write({"store": {b"a": b"too short"}}, {})
    store: Any = open_store(key_value(caching=caching), backend, Context())
    for _ in range(2):
        with pytest.raises(
            DeserializationError, match=r"Store store cannot read the \d bytes of key .*'a': serde long"
        ):
            store.get("a")


def test_what_was_looked_up_is_forgotten_with_all_else_that_was_read(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=True), backend, Context())
    lookup = store.cached_get()
    store.put("a", vt(1))
    commit(store, backend)
    assert lookup.find(b"a", "a") == 1
    for value in (2, 3):
        written = (5).to_bytes(8, "big") + LONG.serialize(value)
        backend.write({"store": {b"a": written}}, {})  # as restoring does, past the cache
        store.forget_reads(0)
        assert not lookup.values
        assert (lookup.find(b"a", "a"), lookup.find(b"b", "b"), lookup.values) == (
            value,
            None,
            {b"a": value, b"b": None},
        )


def test_what_was_not_committed_is_gone_after_a_restart(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=caching), backend, Context())
    store.put("a", vt(1))
    commit(store, backend)
    store.put("a", vt(2))
    store.put("b", vt(3))
    store.flush()
    again: Any = open_store(key_value(caching=caching), reopen(), Context())
    assert list(again.all()) == [("a", vt(1))]


def test_ranges_are_inclusive_ordered_by_bytes_and_see_uncommitted_changes(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=caching), backend, Context())
    store.put_all([("b", vt(1)), ("d", vt(2)), ("é", vt(3))])
    commit(store, backend)
    store.put("c", vt(4))
    store.put("d", vt(5))
    store.delete("b")
    store.put("a", vt(6))
    assert list(store.range("a", "d")) == [("a", vt(6)), ("c", vt(4)), ("d", vt(5))]
    assert [key for key, _ in store.all()] == ["a", "c", "d", "é"]
    assert [key for key, _ in store.reverse_range("b", None)] == ["é", "d", "c"]
    assert [key for key, _ in store.reverse_range(None, "c")] == ["c", "a"]
    assert [key for key, _ in store.prefix_scan("é".encode()[:1])] == ["é"]
    assert store.approximate_num_entries() == 4


def test_one_changelog_record_is_written_per_key_and_commit(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=caching), backend, Context())
    for key, value in (("b", 1), ("a", 2), ("b", 3)):
        store.put(key, vt(value, timestamp=value * 10))
    records = [ChangelogRecord(b"b", LONG.serialize(3), 30), ChangelogRecord(b"a", LONG.serialize(2), 20)]
    assert commit(store, backend) == (
        records[::-1] if caching else records
    )  # in order of the last update, or the first
    assert commit(store, backend) == []


def test_a_tombstone_carries_the_time_of_the_update(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend, context = reopen(), Context()
    store: Any = open_store(key_value(caching=caching), backend, context)
    store.put("a", vt(1))
    commit(store, backend)
    context.timestamp = 99
    store.put("a", None)
    assert commit(store, backend) == [ChangelogRecord(b"a", None, 99)]
    assert store.get("a") is None


def test_a_plain_store_has_the_bare_value_and_the_records_time(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    if caching:
        return  # the DSL caches timestamped stores only
    store: Any = open_store(key_value(caching=False, kind=StoreKind.KEY_VALUE), backend, Context())
    store.put("a", 1)
    assert store.put_if_absent("a", 2) == 1
    assert commit(store, backend) == [ChangelogRecord(b"a", LONG.serialize(1), 7)]
    assert backend.table("store").get(b"a") == LONG.serialize(1)


def test_bytes_lie_in_the_store_as_kafka_streams_writes_them(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend = reopen()
    store: Any = open_store(key_value(caching=caching), backend, Context())
    store.put("a", vt(1, timestamp=5))
    commit(store, backend)
    assert backend.table("store").get(b"a") == bytes.fromhex("00000000000000050000000000000001")
    windows: Any = open_store(replace(window(caching=caching), name="w"), backend, Context())
    windows.put("A", vt(1), 60000)
    windows.flush()
    assert [record.key.hex() for record in windows.changelog()] == ["41000000000000ea6000000000"]


def test_a_cache_forwards_each_key_once_by_last_update_with_the_old_value() -> None:
    backend, updates = MemoryBackend(), list[Any]()
    store: Any = open_store(key_value(caching=True), backend, Context())
    assert store.set_flush_listener(updates.extend, send_old_values=True)
    store.put("a", vt(1))
    commit(store, backend)
    store.put("a", vt(2))
    store.put("b", vt(3))
    store.put("a", vt(4))
    updates.clear()
    store.flush()
    assert [(u.key, u.new, u.old, u.timestamp) for u in updates] == [("b", 3, None, 5), ("a", 4, 1, 5)]


def test_a_cache_forwards_some_at_a_time_and_lets_others_look_between() -> None:
    seen, flushed = list[int](), list[list[Any]]()
    store: Any = open_store(
        key_value(caching=True), MemoryBackend(), Context(), lambda: seen.append(store.get("999").value)
    )
    store.set_flush_listener(lambda updates: flushed.append([(u.key, u.new) for u in updates]), send_old_values=False)
    for number in range(1000):
        store.put(str(number), vt(number))
    store.flush()
    assert [update for together in flushed for update in together] == [(str(number), number) for number in range(1000)]
    assert len(seen) == len(flushed) > 5
    assert set(seen) == {999}


def test_a_key_that_comes_and_goes_within_one_commit_is_never_forwarded() -> None:
    backend = MemoryBackend()
    updates: list[CachedUpdate] = []
    store: Any = open_store(key_value(caching=True), backend, Context())
    store.set_flush_listener(updates.extend, send_old_values=False)
    store.put("a", vt(1))
    store.put("a", None)
    assert commit(store, backend) == []
    assert updates == []


def test_a_changelog_restores_the_same_content(reopen: Callable[[], StateBackend], caching: bool) -> None:
    origin = MemoryBackend()
    store: Any = open_store(key_value(caching=caching), origin, Context())
    log = []
    for step in range(5):
        store.put("a", vt(step))
        store.put(f"k{step}", vt(step, timestamp=step))
        store.put(f"k{step - 2}", None)
        log += commit(store, origin)
    backend = reopen()
    copy: Any = open_store(key_value(caching=caching), backend, Context())
    backend.write(copy.restore(Batch(log)), {CHANGELOG: len(log)})
    assert list(copy.all()) == list(store.all())


def test_windows_are_fetched_by_key_and_start(reopen: Callable[[], StateBackend], caching: bool) -> None:
    backend = reopen()
    store: Any = open_store(window(caching=caching), backend, Context())
    for minute in range(8):
        store.put("a", vt(minute), minute * MINUTE)
        store.put("ab", vt(-minute), minute * MINUTE)
        if minute % 3 == 0:
            commit(store, backend)
    assert store.fetch("a", 3 * MINUTE) == vt(3)
    assert store.fetch("b", 3 * MINUTE) is None
    assert list(store.fetch_range("a", 2 * MINUTE, 4 * MINUTE)) == [(n * MINUTE, vt(n)) for n in (2, 3, 4)]
    assert [(k, s) for k, s, _ in store.fetch_keys("ab", None, 7 * MINUTE, 9 * MINUTE)] == [("ab", 7 * MINUTE)]
    assert len(list(store.all())) == 16
    again: Any = open_store(window(caching=caching), reopen(), Context())
    assert again.fetch("a", 6 * MINUTE) == vt(6)


def entries(backend: Any) -> int:
    """How many it has, in all tables."""
    return sum(1 for name in backend.tables() for _ in backend.table(name).scan(None, None))


def test_expired_windows_are_not_read_or_written_and_segments_are_dropped(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    backend = reopen()
    store: Any = open_store(window(caching=caching), backend, Context())
    store.put("a", vt(1), 0)
    commit(store, backend)
    assert entries(backend) == 1
    store.put("a", vt(2), 15 * MINUTE)
    assert store.fetch("a", 0) is None
    assert list(store.fetch_range("a", 0, 20 * MINUTE)) == [(15 * MINUTE, vt(2))]
    store.put("a", vt(3), 0)
    assert store.expired_puts == 1
    commit(store, backend)
    assert entries(backend) == 1
    again: Any = open_store(window(caching=caching), reopen(), Context())
    again.put("a", vt(3), 0)
    assert again.expired_puts == 1, "the highest time must survive a restart"


@pytest.mark.parametrize("retention", [1, 10, 240])
def test_segments_of_any_length_hold_what_lives_and_little_that_expired(
    reopen: Callable[[], StateBackend], caching: bool, retention: int
) -> None:
    backend = reopen()
    store: Any = open_store(window(caching=caching, retention_ms=retention * MINUTE), backend, Context())
    kept = list[int]()
    for minute in range(0, 3 * retention + 200, 3):
        for key in ("a", "b"):
            store.put(key, vt(minute), minute * MINUTE)
        kept = [at for at in range(0, minute + 3, 3) if at > minute - retention]
        if minute % 4 == 0:
            commit(store, backend)
            assert entries(backend) <= 2 * (len(kept) + retention / 2 / 3 + 1)
        if minute % 21 == 0:
            assert sorted((at // MINUTE, key) for key, at, _ in store.all()) == [
                (at, key) for at in kept for key in "ab"
            ]
            assert [at // MINUTE for at, _ in store.backward_fetch_range("b", 0, MAX_TIME_MS)] == kept[::-1]
    commit(store, backend)
    assert len(backend.tables()) <= 3
    rows = list(store.all())
    again: Any = open_store(window(caching=caching, retention_ms=retention * MINUTE), reopen(), Context())
    assert (list(again.all()), len(rows)) == (rows, 2 * len(kept))


def test_a_window_changelog_restores_what_has_not_expired(reopen: Callable[[], StateBackend], caching: bool) -> None:
    origin, log = MemoryBackend(), list[ChangelogRecord]()
    store: Any = open_store(window(caching=caching), origin, Context())
    for minute in range(30):
        store.put("a", vt(minute), minute * MINUTE)
        log += commit(store, origin)
    backend = reopen()
    copy: Any = open_store(window(caching=caching), backend, Context())
    backend.write(copy.restore(Batch(log)), {})
    assert list(copy.all()) == list(store.all())
    assert len(list(copy.all())) == 10


steps = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "commit", "restart"]), st.text(max_size=2), st.integers(0, 2**40)),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_a_store_behaves_like_a_dict_whatever_is_done_to_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("state")
    for caching in (True, False):
        backend = RocksDbBackend(directory / str(caching))
        store: Any = open_store(key_value(caching=caching), backend, Context())
        model: dict[str, int] = {}
        committed: dict[str, int] = {}
        for action, key, value in steps:
            if action == "put":
                store.put(key, vt(value))
                model[key] = value
            elif action == "delete":
                store.put(key, None)
                model.pop(key, None)
            elif action == "commit":
                commit(store, backend)
                committed = dict(model)
            else:
                backend.close()
                backend = RocksDbBackend(directory / str(caching))
                store = open_store(key_value(caching=caching), backend, Context())
                model = dict(committed)
            assert store.get(key) == (vt(model[key]) if key in model else None)
        expected = sorted(model.items(), key=lambda item: item[0].encode())
        assert [(key, value.value) for key, value in store.all()] == expected
        backend.close()


def test_a_damaged_directory_is_refused_with_a_way_out(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path)
    backend.write({"store": {b"a": b"1"}}, {})
    backend.close()
    for manifest in tmp_path.glob("MANIFEST-*"):
        manifest.write_bytes(b"damaged")
    with pytest.raises(CorruptStateError, match="restores it from the changelogs"):
        RocksDbBackend(tmp_path)


def test_a_scan_never_ends_silently_at_damage_and_the_state_is_given_up(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path)
    backend.write({"store": {b"%05d" % n: b"%100d" % n for n in range(10_000)}}, {CHANGELOG: 3})
    backend.close()
    largest = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    largest.write_bytes(data)
    damaged = RocksDbBackend(tmp_path)
    for reverse in (False, True):
        with pytest.raises(CorruptStateError, match="is damaged"):
            list(damaged.table("store").scan(None, None, reverse=reverse))
    with pytest.raises(CorruptStateError, match="is damaged"):
        damaged.table("store").get(b"04500")
    damaged.close()
    with pytest.raises(CorruptStateError, match="was found to be damaged"):
        RocksDbBackend(tmp_path)


def test_a_table_outlives_a_wipe(reopen: Callable[[], StateBackend]) -> None:
    reopen().write({"store": {b"a": b"1"}}, {})
    backend = reopen()
    table = backend.table("store")
    assert table.get(b"a") == b"1"
    backend.wipe()
    assert table.get(b"a") is None
    backend.write({"store": {b"b": b"2"}}, {})
    assert table.get(b"b") == b"2"


def test_a_directory_of_another_format_version_is_refused(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path)
    backend._opened[b"format"] = b"999"
    backend.close()
    with pytest.raises(CorruptStateError, match="format version 999"):
        RocksDbBackend(tmp_path)


def test_two_owners_of_one_directory_are_refused(tmp_path: Path) -> None:
    first = RocksDbBackend(tmp_path)
    with pytest.raises(StateError, match="in use"):
        RocksDbBackend(tmp_path)
    first.close()


def test_a_wiped_backend_is_empty_and_usable(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    backend.write({"store": {b"a": b"1"}}, {CHANGELOG: 3})
    backend.wipe()
    assert backend.positions() == {}
    assert backend.table("store").get(b"a") is None
    backend.write({"store": {b"b": b"2"}}, {})
    assert list(backend.table("store").scan(None, None)) == [(b"b", b"2")]


def test_a_checkpoint_is_a_complete_copy(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path / "live")
    backend.write({"store": {b"a": b"1"}}, {CHANGELOG: 3})
    backend.checkpoint(tmp_path / "copies" / "one")
    backend.write({"store": {b"a": b"2"}}, {CHANGELOG: 4})
    copy = RocksDbBackend(tmp_path / "copies" / "one")
    assert copy.table("store").get(b"a") == b"1"
    assert copy.positions() == {CHANGELOG: 3}
    copy.close()
    backend.close()


class KilledError(Exception):
    """A backend that ends the process during a write."""


def put_window(store: Any, number: int, value: int) -> None:
    store.put(f"k{number:04}", vt(value), number % 20 * MINUTE)


def put_value(store: Any, number: int, value: int) -> None:
    store.put(f"k{number:04}", vt(value) if number % 7 else None)


@pytest.mark.parametrize(
    ("builder", "put"),
    [(key_value(caching=True), put_value), (window(caching=True), put_window)],
    ids=["key-value", "window"],
)
@pytest.mark.parametrize("pauses", [10, 17, 23])
def test_a_commit_that_was_torn_is_made_whole_out_of_the_changelog(
    tmp_path: Path, builder: StoreBuilder, put: Callable[[Any, int, int], None], pauses: int
) -> None:
    whole: Any = MemoryBackend()
    torn: Any = RocksDbBackend(tmp_path / "0_0")
    stores: list[Any] = [open_store(builder, backend, Context()) for backend in (whole, torn)]
    for store, backend in zip(stores, (whole, torn), strict=True):
        for number in range(0, 3_000, 2):
            put(store, number, number)
        commit(store, backend, 1)
        for number in range(3_000):
            put(store, number, -number)
        store.flush()
    log = list(stores[1].changelog())
    left = iter(range(pauses))

    def pause() -> None:
        if next(left, None) is None:
            raise KilledError

    with pytest.raises(KilledError):
        torn.write(stores[1].pending(), {CHANGELOG: 2}, pause, in_parts=True)
    assert torn.positions() == {CHANGELOG: 1}
    torn.close()
    commit(stores[0], whole, 2)

    torn = RocksDbBackend(tmp_path / "0_0")
    restored: Any = open_store(builder, torn, Context())
    torn.write(restored.restore(Batch(log)), {CHANGELOG: 2})
    opened: Any = open_store(builder, torn, Context())
    assert list(opened.all()) == list(stores[0].all())
    torn.close()


@pytest.mark.parametrize("in_parts", [True, False])
def test_only_what_may_be_torn_is_written_in_parts(tmp_path: Path, in_parts: bool) -> None:
    backend: Any = RocksDbBackend(tmp_path / "0_0")
    seen: list[int] = []
    backend.write(
        {"table": {b"%04d" % number: b"" for number in range(2_000)}},
        {CHANGELOG: 1},
        lambda: seen.append(len(list(backend.table("table").scan(None, None)))),
        in_parts=in_parts,
    )
    assert max(seen) == (1_536 if in_parts else 0)
    assert len(list(backend.table("table").scan(None, None))) == 2_000
    assert backend.positions() == {CHANGELOG: 1}
    backend.close()


@pytest.mark.parametrize("kind", [StoreKind.KEY_VALUE, StoreKind.WINDOW, StoreKind.SESSION, StoreKind.JOIN_WINDOW])
def test_held_back_bytes_are_estimated_from_the_last_write_without_a_cache(kind: StoreKind) -> None:
    store: Any = open_store(
        StoreBuilder("store", kind, STRING, STRING, retention_ms=MINUTE), MemoryBackend(), Context()
    )
    assert store.held_back_bytes() == 0
    for number in range(100):
        key: Any = str(number) if kind is not StoreKind.SESSION else Windowed(str(number), Window(0, 0))
        times = () if kind in {StoreKind.KEY_VALUE, StoreKind.SESSION} else (0,)
        store.put(key, "v" * 10_000, *times)
    assert 1_000_000 < store.held_back_bytes() < 1_100_000


@pytest.mark.parametrize("is_windowed", [False, True])
def test_what_a_cache_holds_back_is_estimated_as_it_is(*, is_windowed: bool) -> None:
    """Within a factor that leaves room for other versions of Python."""
    kind = StoreKind.TIMESTAMPED_WINDOW if is_windowed else StoreKind.TIMESTAMPED_KEY_VALUE
    builder = StoreBuilder("store", kind, STRING, LONG, caching=True, retention_ms=MINUTE)
    context = Context()
    store: Any = open_store(builder, MemoryBackend(), context)
    times = (0,) if is_windowed else ()
    tracemalloc.start()
    try:
        for number in range(10_000):
            context.record_metadata = RecordMetadata("in", 0, 1000 + number)
            store.put(f"key-{number}", ValueAndTimestamp(1000 + number, 1_000_000 + number), *times)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 * taken < store.held_back_bytes() < 1.5 * taken
