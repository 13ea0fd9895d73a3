"""Bytes of internal topics and stores that are not what a serde has written: refused, never looped over, never cut short."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import BYTES, LONG, STRING, Mean, Windowed, session_windowed
from riverrun.dsl.named_aggregates import states_serde
from riverrun.operators.count_windows import Filling, OpenWindows, open_windows
from riverrun.operators.patterns import Candidate, candidates
from riverrun.operators.rolling import values_of_a_time
from riverrun.records import Change, RecordMetadata
from riverrun.serde.foreign_key import (
    Instruction,
    Subscription,
    SubscriptionResponse,
    response_serde,
    subscription_serde,
)
from riverrun.serde.internal import (
    BufferedRecord,
    JoinSideKey,
    JoinSideValue,
    change_serde,
    decode_buffered,
    decode_change,
    decode_list,
    encode_buffered,
    encode_change,
    encode_list,
    join_side_key,
    join_side_value,
)
from riverrun.serde.windowed import windowed_of_size_ms
from riverrun.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable

HASH = b"0123456789abcdef"
SUBSCRIPTION, RESPONSE = subscription_serde(STRING), response_serde(STRING)
METADATA = RecordMetadata("topic", 3, 7)
FORMATS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any], list[Any]]] = {
    "change": (lambda both: encode_change(*both), decode_change, [(b"new", b"old"), (None, b"old"), (b"new", None)]),
    "change of texts": (
        change_serde(STRING).serialize,
        change_serde(STRING).deserialize,
        [Change("n", "o"), Change(None, "o")],
    ),
    "subscription": (
        SUBSCRIPTION.serialize,
        SUBSCRIPTION.deserialize,
        [
            Subscription(HASH, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "key", 3),
            Subscription(None, Instruction.DELETE_KEY_AND_PROPAGATE, "", None),
        ],
    ),
    "response": (
        RESPONSE.serialize,
        RESPONSE.deserialize,
        [SubscriptionResponse(HASH, "value", None), SubscriptionResponse(None, None, None)],
    ),
    "open windows": (
        open_windows(STRING).serialize,
        open_windows(STRING).deserialize,
        [OpenWindows(1, (Filling(2, b"ab"), Filling(1, None))), OpenWindows(0, ())],
    ),
    "values of a time": (
        values_of_a_time(STRING).serialize,
        values_of_a_time(STRING).deserialize,
        [(), (b"", b"a")],
    ),
    "candidates": (
        candidates(STRING).serialize,
        candidates(STRING).deserialize,
        [(Candidate(5, 3, b"a"), Candidate(6, 0, b"")), (Candidate(0, 2**32 - 1, b"abc"),)],
    ),
    "list": (encode_list, decode_list, [[], [b"", b"a"], [b"abc"] * 5]),
    "join key": (
        join_side_key(STRING).serialize,
        join_side_key(STRING).deserialize,
        [JoinSideKey(5, is_left=True, key="k"), JoinSideKey(0, is_left=False, key="")],
    ),
    "join value": (
        join_side_value(STRING, LONG).serialize,
        join_side_value(STRING, LONG).deserialize,
        [JoinSideValue(is_left=True, value="a"), JoinSideValue(is_left=False, value=7)],
    ),
    "windowed key": (
        windowed_of_size_ms(STRING, 10).serialize,
        windowed_of_size_ms(STRING, 10).deserialize,
        [Windowed("k", Window(0, 10)), Windowed("", Window(2**62, 2**62 + 10))],
    ),
    "session key": (
        session_windowed(BYTES).serialize,
        session_windowed(BYTES).deserialize,
        [Windowed(b"k", Window(3, 3)), Windowed(b"", Window(0, 2**62))],
    ),
    "buffered": (
        encode_buffered,
        decode_buffered,
        [
            BufferedRecord(5, (("a", b"1"), ("b", None)), METADATA, b"value"),
            BufferedRecord(5, (), None, b""),
        ],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read(name: str) -> None:
    write, read, values = FORMATS[name]
    for value in values:
        found = read(write(value))
        assert found == (value if name != "change" else (*value, True))


@pytest.mark.parametrize("name", FORMATS)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_others(name: str, data: Any) -> None:
    write, _, values = FORMATS[name]
    raw = bytearray(write(data.draw(st.sampled_from(values))))
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
                st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255)
            )
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    check(name, cut)


@pytest.mark.parametrize("name", FORMATS)
@given(st.binary(max_size=40))
@example(b"\1" + struct.pack(">ii", 2**31 - 1, -4))
@example(b"\1" + struct.pack(">i", 2**31 - 1))
@example(b"\1" + struct.pack(">i", -1))
@example(b"\1\0" + HASH[:5])
@example(b"\0" * 20 + struct.pack(">i", 2**31 - 1))
@example(struct.pack(">qq", -1, -1))
@example(struct.pack(">qq", 5, 9))
@example(b"\xff\xff\xff\xff\x0f\x02")
def test_any_bytes_are_refused_or_read(name: str, data: bytes) -> None:
    check(name, data)


def test_rows_of_values_are_shown_as_their_serdes_show_them() -> None:
    sums = states_serde((("mean", Mean()),))
    data = sums.serialize(sums.deserialize(b'{"mean":{"sum":5,"count":2}}'))
    rows: list[tuple[Any, Any]] = [
        (open_windows(sums), OpenWindows(0, (Filling(1, data),))),
        (values_of_a_time(sums), (data,)),
        (candidates(sums), (Candidate(5, 1, data),)),
    ]
    assert [serde.plain(row)[0] for serde, row in rows] == [
        {"records": 1, "aggregate": {"mean": 2.5}},
        {"mean": 2.5},
        {"time": 5, "value": {"mean": 2.5}},
    ]


def check(name: str, data: bytes) -> None:
    """Check that what is read is written as bytes that are read as it again, or else that a ValueError says why."""
    write, read, _ = FORMATS[name]
    try:
        value = read(data)
    except ValueError:
        return
    again = write((value.new, value.old)) if name == "change" else write(value)
    assert read(again)[:2] == value[:2] if "change" in name else read(again) == value
