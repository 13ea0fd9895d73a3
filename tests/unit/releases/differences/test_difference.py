"""The index of what two topics hold per key."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.errors import CorruptStateError, ReleaseError, StateError
from riverrun.records import TopicPartition
from riverrun.releases.difference import DifferenceIndex, KeyChange, Pair, Side, TableRow
from riverrun.state.memory import MemoryBackend
from riverrun.state.rocksdb import RocksDbBackend
from tests.full_disk import full_disk

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.records import RawFields

TOPICS = {Side.OLD: "public", Side.NEW: "staging"}

Written = tuple[Side, int, bytes, bytes | None]
"""Topic, partition, key, value."""

writings = st.lists(
    st.tuples(
        st.sampled_from(Side),
        st.integers(0, 1),
        st.sampled_from([b"", b"a", b"ab", b"b"]),
        st.sampled_from([None, b"", b"1", b"2"]),
    )
)


def record(key: bytes | None, value: bytes | None, timestamp: int = 1, offset: int = 0) -> RawFields:
    return key, value, timestamp, offset, ()


def fed(index: DifferenceIndex, *written: Written) -> DifferenceIndex:
    for offset, (side, partition, key, value) in enumerate(written):
        index.apply(side, TopicPartition(TOPICS[side], partition), [record(key, value)], offset + 1)
    return index


@given(writings)
def test_rows_and_differences_are_those_of_two_dictionaries(written: list[Written]) -> None:
    index = fed(DifferenceIndex(MemoryBackend()), *written)
    tables: dict[Side, dict[tuple[int, bytes], bytes]] = {Side.OLD: {}, Side.NEW: {}}
    for side, partition, key, value in written:
        if value is None:
            tables[side].pop((partition, key), None)
        else:
            tables[side][partition, key] = value
    old, new = tables[Side.OLD], tables[Side.NEW]
    expected = [
        Pair(*where, *(None if value is None else TableRow(value, 1) for value in (old.get(where), new.get(where))))
        for where in sorted(old.keys() | new.keys())
    ]
    assert list(index.rows()) == expected
    assert list(index.differences()) == [pair for pair in expected if pair.change is not KeyChange.SAME]
    digests = index.digests()
    assert (digests.of(Side.OLD) == digests.of(Side.NEW)) is (old == new)
    assert bool(digests.unequal) is (old != new)


@given(writings, st.randoms())
def test_digests_do_not_depend_on_the_order_of_keys(written: list[Written], chance: object) -> None:
    last = {each[:3]: each for each in written}
    shuffled = list(last.values())
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (fed(DifferenceIndex(MemoryBackend()), *each) for each in (last.values(), shuffled))
    assert one.digests() == other.digests()


def test_rows_keep_their_times_and_headers() -> None:
    index, headers = DifferenceIndex(MemoryBackend()), (("trace", b"1"), ("empty", None))
    index.apply(Side.NEW, TopicPartition("staging", 3), [(b"ann", b"5", -7, 0, headers)], 1)
    assert list(index.rows()) == [Pair(3, b"ann", None, TableRow(b"5", -7, headers))]


def test_equal_values_at_other_times_are_the_same() -> None:
    index = DifferenceIndex(MemoryBackend())
    index.apply(Side.OLD, TopicPartition("public", 0), [record(b"ann", b"5", 1)], 1)
    index.apply(Side.NEW, TopicPartition("staging", 0), [record(b"ann", b"5", 2)], 1)
    assert [pair.change for pair in index.rows()] == [KeyChange.SAME]
    assert list(index.differences()) == []


def test_a_record_without_a_key_is_refused_with_its_place() -> None:
    index, tp = DifferenceIndex(MemoryBackend()), TopicPartition("alerts", 2)
    with pytest.raises(ReleaseError, match=r"alerts-2 has a record without a key at offset 7") as raised:
        index.apply(Side.OLD, tp, [record(b"ann", b"1", offset=6), record(None, b"lost", offset=7)], 8)
    assert '"log"' in str(raised.value)
    assert index.positions() == {}, "the batch was not taken in"


def test_on_a_full_disk_an_index_says_so_and_stays_where_it_was(tmp_path: Path) -> None:
    backend, tp = RocksDbBackend(tmp_path), TopicPartition("public", 0)
    index = DifferenceIndex(backend)

    def fill() -> None:
        for offset in range(100):
            index.apply(Side.OLD, tp, [record(b"%d" % offset, bytes(100_000))], offset + 1)

    hint = None
    with full_disk():
        try:
            fill()
        except StateError as error:  # kept, it would keep the index open
            hint = error.hint
    assert hint == "Is the disk full, or the directory read-only?"
    backend.close()
    backend = RocksDbBackend(tmp_path)
    index = DifferenceIndex(backend)
    reached = index.positions().get(tp, 0)
    assert len(list(index.rows())) == reached < 100
    index.apply(Side.OLD, tp, [record(b"more", b"1")], reached + 1)
    assert index.positions() == {tp: reached + 1}
    backend.close()


def test_an_index_goes_on_where_it_stood(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path)
    fed(DifferenceIndex(backend), (Side.OLD, 0, b"ann", b"1"), (Side.NEW, 1, b"bob", b"2"))
    backend.close()
    backend = RocksDbBackend(tmp_path)
    index = DifferenceIndex(backend)
    assert index.positions() == {TopicPartition("public", 0): 1, TopicPartition("staging", 1): 2}
    fed(index, (Side.NEW, 0, b"ann", b"1"), (Side.OLD, 1, b"bob", b"3"))
    assert [(pair.key, pair.change) for pair in index.rows()] == [(b"ann", KeyChange.SAME), (b"bob", KeyChange.CHANGED)]
    assert [pair.key for pair in index.differences()] == [b"bob"]
    backend.close()


def test_damage_of_any_file_of_an_index_is_noticed_or_harmless(tmp_path: Path) -> None:
    place = tmp_path / "index"
    backend = RocksDbBackend(place)
    index = fed(DifferenceIndex(backend), *((side, 0, b"%d" % n, b"%d" % (n // 2)) for n in range(40) for side in Side))
    right, positions = list(index.rows()), backend.positions()
    backend.close()
    for path in sorted(place.iterdir()):
        if path.name.startswith("LO"):
            continue
        data = path.read_bytes()
        for number in range(0, len(data), max(1, len(data) // 8)):
            changed = shutil.copytree(place, tmp_path / f"{path.name}-{number}")
            (changed / path.name).write_bytes(
                data[:number] + bytes([data[number] ^ (1 << number % 8)]) + data[number + 1 :]
            )
            with suppress(CorruptStateError), closing(RocksDbBackend(changed)) as backend:
                assert backend.positions() != positions or list(DifferenceIndex(backend).rows()) == right
