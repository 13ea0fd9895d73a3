"""Keys go where Java's producers and Kafka Streams send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.partitioning import MANY_KEYS, murmur2, partition_for, partitions_for


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_what_kafkas_own_test_expects(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@given(st.binary(max_size=64))
def test_murmur2_is_a_signed_32_bit_number(data: bytes) -> None:
    assert -(2**31) <= murmur2(data) < 2**31


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_key_has_one_partition_among_those_there_are(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions
    assert partition_for(key, 1) == 0


def test_a_negative_hash_loses_its_sign_bit_and_is_not_negated() -> None:
    assert partition_for(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10


@pytest.fixture(scope="module")
def _ever_new_keys() -> None:
    for number in range(MANY_KEYS):
        partition_for(b"%d" % number, 3)


@pytest.mark.usefixtures("_ever_new_keys")
@given(st.lists(st.binary(max_size=9)), st.integers(0, 40), st.integers(0, 40), st.integers(1, 1000))
def test_many_keys_go_where_each_of_them_goes(keys: list[bytes], length: int, many: int, partitions: int) -> None:
    mixed = [*keys, *(bytes([n]) * length for n in range(many)), *keys]
    assert partitions_for(mixed, partitions) == [partition_for(key, partitions) for key in mixed]
