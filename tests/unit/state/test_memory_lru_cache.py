"""Stores that keep only the keys used last (`MemoryLRUCache`): in memory and in RocksDB, with and without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Materialized, Produced, Stores, StreamsBuilder, TopologyError
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing import TopologyTestDriver
from tests.changelogs import Batch
from tests.stores import Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import StateBackend


def opened(backend: Any, *, size: int = 3, caching: bool = False) -> Any:
    builder = Stores.key_value_store(Stores.lru_map("store", size), STRING, LONG, caching=caching)
    return open_store(builder, backend, Context())


def test_the_key_that_was_not_used_for_longest_goes(reopen: Callable[[], StateBackend]) -> None:
    store = opened(reopen())
    for number, key in enumerate("abc"):
        store.put(key, number)
    assert store.get("a") == 0
    store.put("d", 3)
    assert dict(store.all()) == {"a": 0, "c": 2, "d": 3}
    assert store.approximate_num_entries() == 3
    store.put("c", 4)
    store.put("e", 5)
    assert dict(store.all()) == {"c": 4, "d": 3, "e": 5}
    store.delete("d")
    store.put("f", 6)
    assert dict(store.all()) == {"c": 4, "e": 5, "f": 6}


def test_the_changelog_says_what_has_gone_and_restores_the_rest(
    reopen: Callable[[], StateBackend], caching: bool
) -> None:
    origin = MemoryBackend()
    store, log = opened(origin, caching=caching), []
    for number, key in enumerate("abcde"):
        store.put(key, number)
        log += commit(store, origin)
    assert [(r.key, r.value is None) for r in log[3:]] == [(b"d", False), (b"a", True), (b"e", False), (b"b", True)]
    assert store.get("a") is None
    backend = reopen()
    copy = opened(backend)
    backend.write(copy.restore(Batch(log)), {})
    assert dict(copy.all()) == {"c": 2, "d": 3, "e": 4}
    copy.put("f", 5)
    assert dict(copy.all()) == {"d": 3, "e": 4, "f": 5}


def test_the_order_of_use_survives_a_restart(reopen: Callable[[], StateBackend]) -> None:
    backend = reopen()
    store = opened(backend)
    for number, key in enumerate("cba"):
        store.put(key, number)
    store.get("c")
    commit(store, backend)
    again = opened(reopen())
    again.put("d", 3)
    assert dict(again.all()) == {"c": 0, "a": 2, "d": 3}


def test_a_table_forgets_keys_without_telling_anybody() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    stream.count(Materialized(STRING, name="counts", max_entries=2)).to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        for key in ("a", "b", "a", "c", "b"):
            driver.input_topic("in", STRING, STRING).pipe_input(key, "x")
        found = driver.output_topic("out", STRING, LONG).read_records_to_list()
    assert [(r.key, r.value) for r in found] == [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 1)]


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(TopologyError, match="max_cache_size cannot be negative"):
        opened(MemoryBackend(), size=-1)
    with pytest.raises(TopologyError, match="max_entries cannot be negative"):
        Materialized(name="store", max_entries=-1)
    empty = opened(MemoryBackend(), size=0)
    empty.put("a", 1)
    assert list(empty.all()) == []
