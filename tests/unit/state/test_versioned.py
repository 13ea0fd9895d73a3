"""Versioned stores: what holds when, what comes too late, what a changelog brings back. Values as in RocksDBVersionedStore."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import STRING, Stores, TopologyError
from riverrun.records import VersionedRecord
from riverrun.state.memory import MemoryBackend
from riverrun.state.store_types import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED
from riverrun.state.stores.opening import open_store
from riverrun.state.suppliers import changelog_config
from tests.changelogs import Batch
from tests.stores import Context

LATEST, NOT_PUT = PUT_RETURN_CODE_VALID_TO_UNDEFINED, PUT_RETURN_CODE_NOT_PUT
HISTORY_MS = 100
BUILDER = Stores.versioned_key_value_store(
    "versions", STRING, STRING, history_retention=timedelta(milliseconds=HISTORY_MS)
)


@dataclass
class Opened:
    """A store that commits when told to."""

    backend: MemoryBackend = field(default_factory=MemoryBackend)
    log: list[Any] = field(default_factory=list)
    store: Any = None

    def __post_init__(self) -> None:
        self.store = open_store(BUILDER, self.backend, Context())

    def commit(self) -> None:
        self.log += self.store.changelog()
        self.backend.write(self.store.pending(), {})
        self.store.committed()

    def reopened(self) -> Opened:
        self.commit()
        return Opened(self.backend, self.log)

    def restored(self) -> Opened:
        self.commit()
        other = Opened(log=list(self.log))
        for at in range(0, len(self.log), 3):
            other.backend.write(other.store.restore(Batch(self.log[at : at + 3])), {})
        return other


@pytest.fixture(params=["open", "committed", "reopened", "restored"])
def after(request: pytest.FixtureRequest) -> Any:
    """How the store is looked at: it must not matter."""

    def look(opened: Opened) -> Any:
        match request.param:
            case "committed":
                opened.commit()
            case "reopened" | "restored":
                return getattr(opened, request.param)().store
        return opened.store

    return look


def test_a_value_holds_until_the_next_one(after: Any) -> None:
    opened = Opened()
    assert [opened.store.put("k", *put) for put in (("a", 10), ("b", 20), (None, 30), ("c", 40))] == [LATEST] * 4
    store = after(opened)
    assert store.get("k") == VersionedRecord("c", 40, None)
    assert store.get("k", 9) is None
    assert store.get("k", 10) == VersionedRecord("a", 10, 20)
    assert store.get("k", 19) == VersionedRecord("a", 10, 20)
    assert store.get("k", 20) == VersionedRecord("b", 20, 30)
    assert store.get("k", 30) is None
    assert store.get("k", 41) == VersionedRecord("c", 40, None)
    assert store.get("other") is None


def test_a_value_that_comes_late_takes_its_place_in_the_history(after: Any) -> None:
    opened = Opened()
    opened.store.put("k", "a", 10)
    opened.store.put("k", "c", 30)
    assert opened.store.put("k", "b", 20) == 30
    assert opened.store.put("k", "B", 20) == 30
    assert opened.store.put("k", None, 25) == 30
    assert opened.store.put("k", "first", 5) == 10
    store = after(opened)
    found = [store.get("k", at) for at in (4, 5, 10, 20, 25, 30)]
    assert [f and f.value for f in found] == [None, "first", "a", "B", None, "c"]
    assert found[3] == VersionedRecord("B", 20, 25)


def test_the_latest_value_can_be_replaced_or_deleted_at_its_own_time() -> None:
    store = Opened().store
    store.put("k", "a", 10)
    assert store.put("k", "b", 10) == LATEST
    assert store.get("k") == VersionedRecord("b", 10, None)
    assert store.put("k", None, 10) == LATEST
    assert store.get("k") is None
    assert store.put("k", "c", 5) == LATEST  # nothing was below: the deletion left no trace


def test_a_deletion_of_nothing_is_remembered(after: Any) -> None:
    opened = Opened()
    assert opened.store.put("k", None, 10) == LATEST
    store = after(opened)
    assert store.put("k", "a", 5) == 10
    assert store.get("k") is None
    assert store.get("k", 7) == VersionedRecord("a", 5, 10)


def test_a_deletion_that_comes_twice_is_remembered(after: Any) -> None:
    opened = Opened()
    assert opened.store.put("k", None, 10) == LATEST
    assert opened.store.put("k", None, 10) == LATEST
    assert after(opened).put("k", "a", 5) == 10


def test_a_put_behind_the_history_is_refused_and_counted(after: Any) -> None:
    opened = Opened()
    opened.store.put("k", "a", 50)
    opened.store.put("other", "x", 200)
    store = after(opened)
    assert store.put("k", "late", 99) == NOT_PUT
    assert store.put("k", "in time", 100) == LATEST
    assert store.expired_puts == 1
    assert store.delete("k", 99) is None
    assert store.get("k") == VersionedRecord("in time", 100, None)


def test_only_the_latest_value_is_found_behind_the_history(after: Any) -> None:
    opened = Opened()
    for key, value, timestamp in (("k", "a", 10), ("k", "b", 60), ("old", "x", 20), ("other", "y", 200)):
        opened.store.put(key, value, timestamp)
    store = after(opened)
    assert store.get("k", 59) is None
    assert store.get("k", 99) == VersionedRecord("b", 60, None)
    assert store.get("old", 50) == VersionedRecord("x", 20, None)


def test_delete_tells_what_held_then() -> None:
    store = Opened().store
    store.put("k", "a", 10)
    assert store.delete("k", 15) == VersionedRecord("a", 10, None)
    assert store.get("k", 12) == VersionedRecord("a", 10, 15)
    assert store.delete("k", 20) is None


def test_expired_history_is_removed_even_if_its_key_is_never_put_again() -> None:
    opened = Opened()
    for value, timestamp in (("a", 10), ("b", 20), (None, 30)):
        opened.store.put("gone", value, timestamp)
    opened.store.put("kept", "x", 15)
    opened.store.put("kept", "y", 25)
    opened.commit()
    opened.store.put("clock", "z", 500)
    opened.commit()
    opened.commit()
    rows = [key for key, _ in opened.backend.table("versions").scan(None, None)]
    assert sorted(row[4:-8] for row in rows) == [b"clock", b"kept"]
    assert opened.store.get("kept") == VersionedRecord("y", 25, None)


def test_every_version_goes_to_the_changelog_and_is_safe_from_compaction_for_ever() -> None:
    opened = Opened()
    for value, timestamp in (("a", 10), ("c", 30), ("b", 20), (None, 40)):
        opened.store.put("k", value, timestamp)
    opened.commit()
    assert [(r.value, r.timestamp) for r in opened.log] == [(b"a", 10), (b"c", 30), (b"b", 20), (None, 40)]
    config = changelog_config(BUILDER)
    assert config["cleanup.policy"] == "compact"
    assert config["min.compaction.lag.ms"] == str(2**63 - 1), "brokers would compare event times with their clock"


def test_a_versioned_table_needs_a_name() -> None:
    from riverrun import Materialized  # noqa: PLC0415 - the only use

    with pytest.raises(TopologyError, match="needs a name"):
        Materialized(history_retention=timedelta(seconds=1))


PUTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.sampled_from("xyz")), st.integers(0, 300), st.booleans()),
    max_size=30,
)


@given(PUTS)
def test_lookups_agree_with_a_list_of_all_versions(puts: list[tuple[str, str | None, int, bool]]) -> None:
    opened, model, observed = Opened(), dict[str, dict[int, str | None]](), -1
    for key, value, timestamp, commits in puts:
        if value is None and timestamp == max(model.get(key, {}), default=None):
            continue  # whether the deletion of a latest value at its own time is remembered depends on what is below
        taken = timestamp >= observed - HISTORY_MS
        if taken:
            observed = max(observed, timestamp)
            model.setdefault(key, {})[timestamp] = value
        assert (opened.store.put(key, value, timestamp) != NOT_PUT) is taken
        if commits:
            opened.commit()
    stores = opened.store, opened.reopened().store, opened.restored().store
    for key, versions in model.items():
        newest = max(versions)
        for as_of in range(max(0, observed - HISTORY_MS), 301, 7):
            held = max((t for t in versions if t <= as_of), default=None)
            expected = None if held is None else versions[held]
            for store in stores:
                found = store.get(key, as_of)
                assert (found and found.value) == expected
        for store in stores:
            latest = store.get(key)
            assert (latest and latest.value) == versions[newest]


def test_all_versions_are_those_that_a_look_at_some_time_would_give() -> None:
    opened = Opened()
    for key, value, time in [("a", "1", 10), ("bb", "2", 20), ("a", None, 30), ("a", "3", 50), ("bb", "4", 70)]:
        opened.store.put(key, value, time)
    opened.store.put("c", "5", 130)  # the history begins at 30 now
    opened.commit()
    seen = {
        (key, found) for key in ("a", "bb", "c") for time in range(30, 140) if (found := opened.store.get(key, time))
    }
    assert set(opened.store.all_versions()) == seen
    assert len(list(opened.store.all_versions())) == len(seen) == 4
