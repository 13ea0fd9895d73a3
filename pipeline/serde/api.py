"""What a serde is: two functions and a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """Bytes to values and back.

    None never reaches the two functions: a null key or value is null bytes everywhere.

    Args:
        name: Shown in errors and part of a topology's fingerprint.
        serialize: Value to bytes. May raise anything; hosts turn it into `SerializationError`.
        deserialize: Bytes to value. May raise anything; hosts turn it into `DeserializationError`.
        partition_key: The bytes a sink's partition is computed from, where they are not the serialized key
            (windowed keys hash their inner key only: Kafka Streams' `WindowedStreamPartitioner`).
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    partition_key: Callable[[T], bytes] | None = None
