"""Stores that `Stores` supplies to the operators of the DSL (`KStreamImplJoin.assertWindowSettings` and its like)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    JoinWindows,
    Materialized,
    Produced,
    SessionWindows,
    Stores,
    StoreSupplier,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
)
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.testing import TopologyTestDriver

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
NEAR = JoinWindows.of(SECOND, grace=MINUTE)
"""Two seconds long, kept for 62 s."""


def counted(supplier: StoreSupplier, windows: Any = None, **options: Any) -> StoreBuilder:
    """The store of a count."""
    builder = StreamsBuilder()
    grouped: Any = builder.stream("in", TEXTS).group_by_key()
    (grouped if windows is None else grouped.windowed_by(windows)).count(Materialized(supplier=supplier, **options))
    (store,) = builder.build().stores.values()
    return store


def joined(this: StoreSupplier | None, other: StoreSupplier | None, **options: Any) -> Topology:
    builder = StreamsBuilder()
    left, right = builder.stream("left", TEXTS), builder.stream("right", TEXTS)
    stores: StreamJoined[str, str, str] = StreamJoined(this_store_supplier=this, other_store_supplier=other, **options)
    left.left_join(right, lambda one, two: f"{one}{two}", NEAR, joined=stores).to("out", Produced(STRING, STRING))
    return builder.build()


def for_join(name: str, size: timedelta = 2 * SECOND, retention: timedelta = MINUTE + 2 * SECOND) -> StoreSupplier:
    return Stores.in_memory_window_store(name, retention, size, retain_duplicates=True)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_table_has_the_store_that_it_is_supplied_with(persistent: bool) -> None:
    supply = Stores.persistent_key_value_store if persistent else Stores.in_memory_key_value_store
    store = counted(supply("counts"), caching=False)
    assert (store.name, store.kind, store.persistent) == ("counts", StoreKind.TIMESTAMPED_KEY_VALUE, persistent)
    assert not store.caching


def test_a_table_of_the_keys_used_last() -> None:
    store = counted(Stores.lru_map("counts", 3))
    assert (store.max_entries, store.persistent) == (3, False)


def test_a_supplied_store_of_versions_makes_a_versioned_table() -> None:
    store = counted(Stores.persistent_versioned_key_value_store("counts", HOUR))
    assert (store.kind, store.retention_ms, store.caching) == (StoreKind.VERSIONED, 3_600_000, False)


def test_windows_are_kept_for_as_long_as_they_are_supplied() -> None:
    store = counted(Stores.persistent_window_store("counts", HOUR, MINUTE), TimeWindows.of(MINUTE))
    assert (store.kind, store.retention_ms, store.window_size_ms) == (StoreKind.TIMESTAMPED_WINDOW, 3_600_000, 60_000)
    store = counted(Stores.in_memory_session_store("counts", HOUR), SessionWindows.of(MINUTE))
    assert (store.kind, store.retention_ms, store.persistent) == (StoreKind.SESSION, 3_600_000, False)


@pytest.mark.parametrize(
    ("supplier", "windows", "complaint"),
    [
        (
            Stores.persistent_window_store("s", MINUTE, MINUTE),
            None,
            "supplied as a window store instead of a key-value",
        ),
        (
            Stores.persistent_key_value_store("s"),
            TimeWindows.of(MINUTE),
            "supplied as a key-value store instead of a window",
        ),
        (
            Stores.persistent_session_store("s", HOUR),
            TimeWindows.of(MINUTE),
            "as a session store instead of a window store",
        ),
        (Stores.lru_map("s", 3), SessionWindows.of(MINUTE), "as a key-value store instead of a session store"),
        (Stores.persistent_window_store("s", HOUR, HOUR), TimeWindows.of(MINUTE), "windows of 3600000 ms, not for"),
        (
            Stores.persistent_session_store("s", SECOND),
            SessionWindows.of(MINUTE),
            "for 1000 ms, but they can change for 60000 ms",
        ),
        (
            Stores.persistent_window_store("s", MINUTE, MINUTE),
            TimeWindows.of(MINUTE, grace=SECOND),
            "for 60000 ms, but they can change for 61000 ms",
        ),
        (
            Stores.in_memory_window_store("s", MINUTE, MINUTE, retain_duplicates=True),
            TimeWindows.of(MINUTE),
            "cannot be supplied with retain_duplicates",
        ),
    ],
)
def test_a_supplied_store_must_fit_what_it_is_for(supplier: StoreSupplier, windows: Any, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        counted(supplier, windows)


@pytest.mark.parametrize(("option", "value"), [("name", "other"), ("persistent", True), ("retention", MINUTE)])
def test_what_a_supplier_says_cannot_be_said_otherwise(option: str, value: Any) -> None:
    with pytest.raises(TopologyError, match=f"Cannot set {option} when store supplier is pre-configured"):
        counted(Stores.in_memory_window_store("s", HOUR, MINUTE), TimeWindows.of(MINUTE), **{option: value})


def test_windows_cannot_be_longer_than_they_are_kept() -> None:
    with pytest.raises(
        TopologyError, match=r"must be no smaller than its window size. Got size=\[60000\], retention=\[1000\]"
    ):
        Stores.persistent_window_store("s", SECOND, MINUTE)
    with pytest.raises(TopologyError, match="max_cache_size cannot be negative"):
        Stores.lru_map("s", -1)


def test_a_join_keeps_its_streams_in_the_stores_it_is_supplied_with() -> None:
    topology = joined(for_join("one"), for_join("two"))
    assert {name: store.persistent for name, store in topology.stores.items()} == {
        "one": False,
        "two": False,
        "one-left-shared-join-store": False,
    }
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("left", STRING, STRING).pipe_input("k", "a", timestamp=1)
        driver.input_topic("right", STRING, STRING).pipe_input("k", "b", timestamp=2)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["ab"]


def test_one_stream_of_a_join_may_be_supplied_with_a_store_and_the_other_named() -> None:
    assert set(joined(None, for_join("two"), store_name="join").stores) == {
        "join-this-join-store",
        "two",
        "join-left-shared-join-store",
    }


def test_the_store_of_waiting_records_is_named_after_the_left_streams() -> None:
    assert set(joined(for_join("one"), None, store_name="join").stores) == {
        "one",
        "join-outer-other-join-store",
        "one-left-shared-join-store",
    }


@pytest.mark.parametrize(
    ("this", "complaint"),
    [
        (for_join("other"), "Both StoreSuppliers have the same name"),
        (
            Stores.in_memory_window_store("s", HOUR, SECOND),
            "must set retainDuplicates=true, found retainDuplicates=false",
        ),
        (for_join("s", size=SECOND), "Window settings mismatch. WindowBytesStoreSupplier settings"),
        (for_join("s", retention=HOUR), "must match JoinWindows settings JoinWindows.before_ms=1000"),
        (Stores.persistent_key_value_store("s"), "supplied as a key-value store"),
    ],
)
def test_a_supplied_store_of_a_join_must_fit_its_windows(this: StoreSupplier, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        joined(this, for_join("other"))


def test_a_store_for_processors_may_be_supplied_as_well() -> None:
    store = Stores.key_value_store(Stores.in_memory_key_value_store("s"), STRING, LONG)
    assert (store.name, store.persistent) == ("s", False)
    with pytest.raises(TopologyError, match="supplied as a session store, not a key-value store"):
        Stores.key_value_store(Stores.in_memory_session_store("s", HOUR), STRING, LONG)
