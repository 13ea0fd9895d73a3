"""Keys, values and metadata are Kafka Streams' own, byte for byte."""

from __future__ import annotations

from datetime import timedelta

import pytest

from riverrun import (
    LONG,
    STRING,
    Materialized,
    Stores,
    StreamsBuilder,
    TimeWindows,
    ValueAndTimestamp,
    Window,
    Windowed,
    windowed,
)
from riverrun.partitioning import murmur2, partition_for
from riverrun.runtime.times import OffsetMetadata
from riverrun.serde.internal import ChangeBytes, decode_change, encode_change
from riverrun.state.codec import codec_of
from riverrun.testing import TopologyTestDriver
from tests.changelogs import Batch
from tests.oracle.topologies import texts

MINUTE = timedelta(minutes=1)


def test_a_windowed_key_is_the_key_and_the_start() -> None:
    key = Windowed("A", Window(60_000, 120_000))
    data = windowed(STRING, MINUTE).serialize(key)
    assert data.hex() == "41000000000000ea60"
    assert windowed(STRING, MINUTE).deserialize(data) == key


def test_the_key_of_a_window_in_a_changelog_ends_with_a_sequence_number() -> None:
    builder = StreamsBuilder()
    texts(builder).group_by_key().windowed_by(TimeWindows.of(MINUTE)).count(Materialized(name="counts"))
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("A", "x", timestamp=60_007)
        (record,) = driver.read_raw("app-counts-changelog")
    assert record.key is not None
    assert record.key.hex() == "41000000000000ea6000000000"
    assert (record.value, record.timestamp) == (LONG.serialize(1), 60_007)


def test_a_store_holds_time_and_value_and_its_changelog_the_value_alone() -> None:
    codec = codec_of(Stores.timestamped_key_value_store("store", STRING, STRING))
    data = codec.encode("k", ValueAndTimestamp("xyz", 5))
    assert data.hex() == "000000000000000578797a"
    (record,) = codec.to_changelog({b"k": data}, {b"k": 9})
    assert (record.value, record.timestamp) == (b"xyz", 5)
    assert codec.from_changelog(Batch([record])) == [data]


@pytest.mark.parametrize(
    ("new", "old", "data"),
    [(b"n", None, "6e01"), (None, b"o", "6f00"), (b"n", b"o", "026e6f02")],
)
def test_a_change_says_which_values_it_has(new: bytes | None, old: bytes | None, data: str) -> None:
    assert encode_change(new, old).hex() == data
    assert decode_change(bytes.fromhex(data)) == ChangeBytes(new, old)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (OffsetMetadata(100), "AgAAAAAAAABk"),
        (OffsetMetadata(100, {"store": 7}), "AgAAAAAAAABkAAAAAQAAAAVzdG9yZQAAAAAAAAAH"),
    ],
)
def test_times_are_committed_as_metadata_of_offsets(metadata: OffsetMetadata, text: str) -> None:
    assert metadata.encode() == text
    assert OffsetMetadata.decode(text) == metadata


def test_times_that_kafka_streams_does_not_know_are_processor_metadata_to_it() -> None:
    own = OffsetMetadata(100, {"store": 7}, times={"b0": 9, "c0": 3, "a0": 9})
    as_theirs = OffsetMetadata(100, {"store": 7, "__riverrun.time c0": 3, "__riverrun.time a0 b0": 9})
    assert len(own.encode()) == len(as_theirs.encode())
    assert OffsetMetadata.decode(own.encode()) == OffsetMetadata.decode(as_theirs.encode()) == own


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_keys_are_hashed_as_by_kafkas_producer(key: str, expected: int) -> None:
    assert murmur2(key.encode()) == expected
    assert partition_for(key.encode(), 7) == (expected & 0x7FFFFFFF) % 7
