"""A serde: two functions and a name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SerdePlace:
    """The place of a serde; one that works with a schema registry needs to know it.

    Args:
        topic: The topic, or the changelog of a store, with the application's prefix; None if it is chosen per record.
        is_key: Whether it is for keys.
        registry: Settings of the schema registry (`[schema_registry]`). Never printed: they may hold secrets.
    """

    topic: str | None
    is_key: bool
    registry: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Serde(Generic[T]):
    """Bytes to values and back (`org.apache.kafka.common.serialization.Serde`).

    >>> upper = Serde("upper", lambda text: text.upper().encode(), bytes.decode)
    >>> upper.deserialize(upper.serialize("abc"))
    'ABC'

    None never reaches the two functions: a null key or value is null bytes everywhere.

    Args:
        name: Shown in errors and part of a topology's fingerprint.
        serialize: Value to bytes. May raise anything; hosts turn it into `SerializationError`.
        deserialize: Bytes to value. May raise anything; hosts turn it into `DeserializationError`.
        partition_key: The bytes a sink's partition is computed from, where they are not the serialized key
            (windowed keys hash their inner key only: Kafka Streams' `WindowedStreamPartitioner`).
        remake: A function and its arguments that make an equal serde. Encoders cannot be pickled; with this, a topology that
            closes over a serde can be sent to executors nevertheless.
        value_type: What values are, for hosts that make columns of them: a Python type that msgspec can inspect, with
            `Annotated[int, 16]` and the like for numbers of fewer than 64 bits; `Any` for whatever JSON has. None if nothing
            is known: columns then hold the bytes.
        immutable_types: Classes of values that nobody can change, and that come back as they were. A store hands out such a
            value again and again; of all others it keeps the bytes, and reads them each time.
        exact: Whether stores refuse a value that would come back as something else, such as a tuple as a list.
        plain: Makes of a value what `value_type` says, where it is something else, such as a message of Protobuf.
        place: Makes the serde for one place, for serdes that need to know it; None for all others. See `placed`.
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    partition_key: Callable[[T], bytes] | None = None
    remake: tuple[Callable[..., Any], tuple[Any, ...]] | None = field(default=None, repr=False, compare=False)
    value_type: Any = field(default=None, repr=False, compare=False)
    immutable_types: frozenset[type] = field(default=frozenset(), repr=False, compare=False)
    exact: bool = field(default=False, repr=False, compare=False)
    plain: Callable[[T], Any] | None = field(default=None, repr=False, compare=False)
    place: Callable[[SerdePlace], Serde[T]] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by `remake`, or by the functions where they can be pickled."""
        return self.remake or (
            type(self),
            (
                self.name,
                self.serialize,
                self.deserialize,
                self.partition_key,
                None,
                self.value_type,
                self.immutable_types,
                self.exact,
                self.plain,
                self.place,
            ),
        )


def plain_reader(serde: Serde[Any]) -> Callable[[bytes], Any]:
    """Return the function that reads bytes to a value of `Serde.value_type`: for columns, and for people."""
    read, plain = serde.deserialize, serde.plain
    return read if plain is None else lambda data: plain(read(data))


def placed(serde: Serde[Any], place: SerdePlace) -> Serde[Any]:
    """The serde for one place: itself, unless it, or one that it is made of, needs to know where it is used.

    >>> upper = Serde("upper", lambda text: text.upper().encode(), bytes.decode)
    >>> placed(upper, SerdePlace("words", is_key=True, registry={})) is upper
    True

    Args:
        serde: As it is in a topology, which knows no application.
        place: Where it is used. Of a serde made of several, such as both sides of a join, each gets a place of its own.
    """
    if serde.place is not None:
        return serde.place(place)
    function, arguments = serde.remake or (None, ())
    inner = [part for part in arguments if isinstance(part, Serde)]
    if function is None or not needs_place(serde):
        return serde
    places = iter([place] if len(inner) == 1 else [_part_of(place, number) for number in range(len(inner))])
    made: Serde[Any] = function(
        *(placed(part, next(places)) if isinstance(part, Serde) else part for part in arguments)
    )
    return made


def needs_place(serde: Serde[Any]) -> bool:
    """Whether a serde, or one that it is made of, needs to know where it is used."""
    function, parts = serde.remake or (None, ())
    if function is placed:  # it has its place
        return False
    return serde.place is not None or any(isinstance(part, Serde) and needs_place(part) for part in parts)


def _part_of(place: SerdePlace, number: int) -> SerdePlace:
    return replace(place, topic=None if place.topic is None else f"{place.topic}-{number}")
