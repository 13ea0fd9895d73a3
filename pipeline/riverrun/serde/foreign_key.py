"""The layout of foreign-key joins in their topics and their store, exactly as Kafka Streams writes it.

```
subscription      0x01, or 0x81 without a hash ++ instruction ++ [hash, 16 bytes] ++ primary key ++ int32 primary partition
response          0x00, or 0x80 without a hash ++ [hash, 16 bytes] ++ foreign value, or nothing if there is none
combined key      int32 length of foreign key ++ foreign key ++ primary key
```
Integers are big-endian. (`SubscriptionWrapperSerde`, `SubscriptionResponseWrapperSerde`, `CombinedKeySchema`.)

Joins recognise stale answers by the hash (`org.apache.kafka.streams.state.internals.Murmur3`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from mmh3 import mmh3_x64_128_utupledigest

from riverrun.serde.api import Serde

_SEED = 104729
_HASH = struct.Struct(">QQ")


def hash128(data: bytes) -> bytes:
    """Compute Murmur3, 128 bits for 64-bit machines, with Kafka Streams' seed; returns 16 bytes, big-endian.

    >>> hash128(b"hello").hex()
    '30bfb4f39919e764566aea857401d1c6'
    """
    return _HASH.pack(*mmh3_x64_128_utupledigest(data, _SEED))


_NO_HASH = 0x80
_VERSION_BITS = 0x7F
_SUBSCRIPTION_VERSION = 1
_RESPONSE_VERSION = 0
_HASH_BYTES = 16
_INT = struct.Struct(">i")
# Makes a named tuple in half the time that a call of its class takes.
_made = tuple.__new__


class Instruction(IntEnum):
    """The instruction in a subscription (`SubscriptionWrapper.Instruction`)."""

    DELETE_KEY_NO_PROPAGATE = 0
    """Delete the subscription; another one causes the answer."""
    DELETE_KEY_AND_PROPAGATE = 1
    """Delete the subscription, and answer with null."""
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    """Store the subscription, and answer in any case."""
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3
    """Store the subscription, and answer if there is a value."""


# Calling the class takes five times as long.
_INSTRUCTIONS = {int(instruction): instruction for instruction in Instruction}


class Subscription(NamedTuple):
    """The request of a primary table's row for a foreign value (`SubscriptionWrapper`).

    `hash` is the hash of the row's serialized value, None for a deleted row. `primary_partition` is the partition for
    answers, None if the writer was older than Kafka Streams 3.4.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: Any
    primary_partition: int | None


class SubscriptionResponse(NamedTuple):
    """The answer to a subscription (`SubscriptionResponseWrapper`): the foreign value, and the requesting row's hash.

    `primary_partition` selects the partition and is not serialized.
    """

    hash: bytes | None
    foreign_value: Any
    primary_partition: int | None


def subscription_serde(primary_key: Serde[Any]) -> Serde[Subscription]:
    """Return the serde of subscriptions, given the serde of the primary table's keys.

    >>> from riverrun.serde.serdes import STRING
    >>> serde = subscription_serde(STRING)
    >>> serde.serialize(Subscription(None, Instruction.DELETE_KEY_AND_PROPAGATE, "pk", 3)).hex()
    '8101706b00000003'
    """
    encode, decode = primary_key.serialize, primary_key.deserialize

    def serialize(subscription: Subscription) -> bytes:
        hash_, instruction, key, partition = subscription
        if partition is None:
            head, tail = 0, b""
        else:
            head, tail = _SUBSCRIPTION_VERSION, _INT.pack(partition)
        flagged = head | _NO_HASH if hash_ is None else head
        return bytes((flagged, instruction)) + (hash_ or b"") + encode(key) + tail

    def deserialize(data: bytes) -> Subscription:
        version, hash_, start = _head(data, 2, _SUBSCRIPTION_VERSION)
        end = len(data) - (_INT.size if version > 0 else 0)
        if end < start:
            raise ValueError(f"{len(data)} bytes are too few for a subscription")
        partition = _INT.unpack_from(data, end)[0] if version > 0 else None
        if partition is not None and partition < 0:
            raise ValueError(f"a subscription cannot ask for answers in partition {partition}")
        known = _INSTRUCTIONS.get(data[1])
        instruction = Instruction(data[1]) if known is None else known
        return _made(Subscription, (hash_, instruction, decode(data[start:end]), partition))

    # A subscription is immutable if its primary key is.
    has_fixed_keys = primary_key.value_type is not Any and bool(primary_key.immutable_types)
    return Serde(
        f"subscription[{primary_key.name}]",
        serialize,
        deserialize,
        remake=(subscription_serde, (primary_key,)),
        immutable_types=frozenset({Subscription}) if has_fixed_keys else frozenset(),
    )


def response_serde(foreign_value: Serde[Any]) -> Serde[SubscriptionResponse]:
    """Return the serde of answers, given the serde of the foreign table's values.

    >>> from riverrun.serde.serdes import STRING
    >>> response_serde(STRING).serialize(SubscriptionResponse(None, "v", 3)).hex()
    '8076'
    """
    encode, decode = foreign_value.serialize, foreign_value.deserialize

    def serialize(response: SubscriptionResponse) -> bytes:
        head = _NO_HASH | _RESPONSE_VERSION if response.hash is None else _RESPONSE_VERSION
        value = b"" if response.foreign_value is None else encode(response.foreign_value)
        return bytes((head,)) + (response.hash or b"") + value

    def deserialize(data: bytes) -> SubscriptionResponse:
        _, hash_, start = _head(data, 1, _RESPONSE_VERSION)
        return _made(SubscriptionResponse, (hash_, decode(data[start:]) if len(data) > start else None, None))

    return Serde(
        f"subscription-response[{foreign_value.name}]",
        serialize,
        deserialize,
        remake=(response_serde, (foreign_value,)),
    )


def combined_key(foreign_key: bytes, primary_key: bytes = b"") -> bytes:
    """Return the key of a subscription in the store; with an empty primary key, the prefix of all keys of a foreign key.

    >>> combined_key(b"F", b"pk1").hex()
    '0000000146706b31'
    """
    return _INT.pack(len(foreign_key)) + foreign_key + primary_key


def _head(data: bytes, size: int, highest_version: int) -> tuple[int, bytes | None, int]:
    """Return the version, the hash, and the position of the rest."""
    if len(data) < size:
        raise ValueError(f"{len(data)} bytes are too few for a message of a foreign-key join")
    version = data[0] & _VERSION_BITS
    if version > highest_version:
        message = f"a foreign-key join cannot read version {version} of its messages, only up to {highest_version}"
        raise ValueError(message)
    if data[0] & _NO_HASH:
        return version, None, size
    if len(data) < size + _HASH_BYTES:
        raise ValueError(f"{len(data)} bytes are too few for the hash of a foreign-key join")
    return version, data[size : size + _HASH_BYTES], size + _HASH_BYTES
