"""Stores refuse values that a serde cannot write, or would return as something else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from riverrun import (
    DOUBLE,
    JSON,
    LONG,
    STRING,
    Consumed,
    Materialized,
    Produced,
    Serde,
    SerializationError,
    StreamsBuilder,
)
from riverrun.records import ValueAndTimestamp
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing import TopologyTestDriver
from tests.stores import Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable


class Frozen(msgspec.Struct, frozen=True):
    """Nobody can change it."""

    number: int
    names: tuple[str, ...] = ()


class Open(msgspec.Struct):
    """Its fields can be set."""

    number: int


@dataclass(frozen=True)
class Point:
    """Nobody can change it."""

    x: int


class Pair(NamedTuple):
    """Nobody can change it, but what it holds."""

    left: int
    right: list[int]


class Unlike:
    """Equal to itself only."""


def opened(serde: Serde[Any], *, caching: bool, key_serde: Serde[Any] = STRING) -> Any:
    builder = StoreBuilder("kept", StoreKind.TIMESTAMPED_KEY_VALUE, key_serde, serde, caching=caching)
    return open_store(builder, MemoryBackend(), Context())


def put(store: Any, value: Any, key: Any = "ann") -> None:
    """Put a value, and make the store write it."""
    store.put(key, ValueAndTimestamp(value, 5))
    store.flush()


REFUSED = [
    (LONG, "5", "Store kept cannot keep the str of key 'ann': serde long refuses it (error: required argument"),
    (LONG, 2**63, "Store kept cannot keep the int of key 'ann': serde long refuses it (error: "),
    (STRING, "\ud800", "Store kept cannot keep the str of key 'ann': serde string refuses it (UnicodeEncodeError: "),
    (STRING, 5, "Store kept cannot keep the int of key 'ann': serde string refuses it (TypeError: "),
    (JSON, (1, 2), "Store kept cannot keep the tuple of key 'ann': with serde json, the tuple comes back as list"),
    (
        JSON,
        {"a": {1}},
        "Store kept cannot keep the dict of key 'ann': with serde json, the set at .a comes back as list",
    ),
    (JSON, b"x", "Store kept cannot keep the bytes of key 'ann': with serde json, the bytes comes back as str"),
    (
        JSON,
        Decimal(5),
        "Store kept cannot keep the Decimal of key 'ann': with serde json, the Decimal comes back as str",
    ),
    (
        JSON,
        {1: "a"},
        "Store kept cannot keep the dict of key 'ann': serde json refuses it (TypeError: Only dicts with str",
    ),
    (JSON, Counter("a"), "Store kept cannot keep the Counter of key 'ann': with serde json, the Counter comes back as"),
    (JSON, Open(1), "Store kept cannot keep the Open of key 'ann': with serde json, the Open comes back as dict"),
    (
        JSON,
        float("nan"),
        "Store kept cannot keep the float of key 'ann': serde json refuses it (ValueError: JSON cannot represent",
    ),
    (JSON, [1, float("inf")], "serde json refuses it (ValueError: JSON cannot represent inf (at 1)"),
    (JSON, Unlike(), "Store kept cannot keep the Unlike of key 'ann': serde json refuses it (TypeError: "),
    (JSON(Frozen), Frozen("one"), "serde json[Frozen] could not read it back (Expected `int`, got `str`"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("serde", "value", "message"), REFUSED)
def test_a_value_that_would_not_come_back_is_refused(
    serde: Serde[Any], value: Any, message: str, caching: bool
) -> None:
    store = opened(serde, caching=caching)
    with pytest.raises(SerializationError) as caught:
        put(store, value)
    assert message in str(caught.value)


@pytest.mark.parametrize("caching", [False, True])
def test_a_value_that_is_refused_leaves_what_was_there(caching: bool) -> None:
    store = opened(JSON, caching=caching)
    put(store, {"a": 1})
    for key in ("ann", "bob"):
        with pytest.raises(SerializationError):
            put(store, (1, 2), key)
    assert (store.get("ann"), store.get("bob")) == (ValueAndTimestamp({"a": 1}, 5), None)


KEPT = [
    (JSON, {"a": [1, None, 1.5, "b", True]}),
    (JSON, 2**70),
    (JSON(tuple[int, str]), (1, "a")),
    (JSON(Decimal), Decimal("1.50")),
    (JSON(set[int]), {1, 2}),
    (JSON(Frozen), Frozen(1, ("a",))),
    (JSON(Open), Open(1)),
    (JSON(Point), Point(1)),
    (JSON(Pair), Pair(1, [2])),
    (DOUBLE, float("inf")),
    (LONG, -(2**63)),
]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("serde", "value"), KEPT)
def test_a_value_comes_back_as_it_was_put(serde: Serde[Any], value: Any, caching: bool) -> None:
    store = opened(serde, caching=caching)
    for _ in range(2):
        put(store, value)
        found = store.get("ann").value
        assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("serde", "value", "is_shared"),
    [
        (STRING, "a", True),
        (JSON, 1.5, True),
        (JSON, [1], False),
        (JSON(Frozen), Frozen(1), True),
        (JSON(Point), Point(1), True),
        (JSON(Pair), Pair(1, [2]), False),
        (JSON(Open), Open(1), False),
        (Serde("custom", str.encode, bytes.decode), "ab", False),
        (Serde("known", str.encode, bytes.decode, immutable_types=frozenset({str})), "ab", True),
    ],
)
def test_a_cache_hands_out_again_what_nobody_can_change(serde: Serde[Any], value: Any, is_shared: bool) -> None:
    store = opened(serde, caching=True)
    put(store, value)
    first, second = store.get("ann").value, store.get("ann").value
    assert first == second == value
    assert (first is second) == is_shared


def test_a_key_that_is_changed_later_is_forwarded_as_it_was() -> None:
    store, seen = opened(LONG, caching=True, key_serde=JSON), list[Any]()
    store.set_flush_listener(lambda updates: seen.extend(update.key for update in updates), send_old_values=False)
    key = ["a"]
    store.put(key, ValueAndTimestamp(1, 5))
    key.append("b")
    commit(store, MemoryBackend())
    assert seen == [["a"]]


def summed(sink: Serde[Any], store: Serde[Any], add: Callable[[Any, Any], Any], *, caching: bool) -> TopologyTestDriver:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))
    sums = stream.group_by_key().reduce(add, Materialized(STRING, store, name="sums", caching=caching))
    sums.to_stream().to("out", Produced(STRING, sink))
    return TopologyTestDriver(builder.build())


@pytest.mark.parametrize("caching", [False, True])
def test_a_sum_that_outgrows_its_serde_names_store_and_key(caching: bool) -> None:
    with summed(LONG, LONG, lambda one, other: one + other, caching=caching) as driver:
        topic = driver.input_topic("in", STRING, JSON)
        topic.pipe_input("ann", 2**62)
        with pytest.raises(SerializationError, match="Store sums cannot keep the int of key 'ann': serde long refuses"):
            topic.pipe_input("ann", 2**62)


def test_a_sink_refuses_a_number_that_json_does_not_have() -> None:
    with summed(JSON, DOUBLE, lambda one, other: one * other, caching=False) as driver:
        topic = driver.input_topic("in", STRING, JSON)
        topic.pipe_input("ann", 1e300)
        with pytest.raises(
            SerializationError, match=r"Sink .* cannot write the float of key .ann. to out: .*JSON cannot represent inf"
        ):
            topic.pipe_input("ann", 1e300)


def test_a_test_topic_names_itself_when_it_cannot_write_a_value() -> None:
    with summed(JSON, JSON, max, caching=False) as driver:
        topic = driver.input_topic("in", STRING, LONG)
        with pytest.raises(
            SerializationError, match="Topic in cannot take the str value 'five': serde long refuses it"
        ):
            topic.pipe_input("ann", "five")  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="Topic in cannot take the int key 5: serde string refuses it"):
            topic.pipe_input(5, 5)  # type: ignore[arg-type]
