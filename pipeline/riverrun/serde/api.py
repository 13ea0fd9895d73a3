"""A serde: two functions and a name. Values of some types may be handed out more than once, as nothing can change them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import uuid
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import inspect

from riverrun.arguments import function, optional, takes_fields
from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PLAIN: frozenset[type] = frozenset({int, str, float, bool})
"""The immutable types of plain JSON values."""
# Types without parts. Datetimes are not among them, as a round trip may change their time zone object.
_ATOMS = PLAIN | {bytes, type(None), decimal.Decimal, uuid.UUID, dt.date}
_CONTAINERS = frozenset({tuple, frozenset})


def immutable_types(type_: Any) -> frozenset[type]:
    """Return the classes of those values of a type that are immutable down to their last part.

    >>> sorted(found.__name__ for found in immutable_types(int | list[int] | None))
    ['int']
    >>> immutable_types(tuple[int, str]) == {tuple}, immutable_types(tuple[list[int], str]) == {tuple}
    (True, False)
    """
    if type_ is Any:
        return PLAIN
    members = get_args(type_) if _is_union(type_) else (type_,)
    if len(members) > 1:
        return frozenset().union(*(immutable_types(member) for member in members))
    return frozenset(_classes(type_)) - {type(None)} if _is_immutable(type_, frozenset()) else frozenset()


def _classes(type_: Any) -> set[type]:
    origin = get_origin(type_)
    if origin is Annotated:
        return _classes(get_args(type_)[0])
    if origin is Literal:
        return {type(value) for value in get_args(type_)}
    return {origin or type_}


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in {Union, types.UnionType}


def _is_immutable(type_: Any, within: frozenset[Any]) -> bool:
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _is_immutable(args[0], within)
    if _is_union(type_) or origin in _CONTAINERS:
        return all(part is Ellipsis or _is_immutable(part, within) for part in args)
    if origin is Literal or type_ in _ATOMS:
        return True
    if not isinstance(type_, type) or origin is not None:
        return False
    if type_ in within or issubclass(type_, enum.Enum):
        return True
    return _is_frozen(type_) and all(_is_immutable(part, within | {type_}) for part in _fields(type_))


def _is_frozen(type_: type) -> bool:
    if issubclass(type_, msgspec.Struct):
        return bool(type_.__struct_config__.frozen)
    if dataclasses.is_dataclass(type_):
        return bool(type_.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(type_, tuple) and hasattr(type_, "_fields")


def _fields(type_: type) -> list[Any]:
    """Return the types of an object's fields; `Any` if unknown."""
    try:
        # Frozen structs and dataclasses are trusted to hold what they declare.
        return list(get_type_hints(type_, include_extras=True).values())
    except Exception:  # noqa: BLE001 - names that only type checkers know
        return [Any]


T = TypeVar("T")

ITEM = "riverrun_item"
"""Attribute of a serde's function that reads or writes tuples of one item: the function of that item."""

FIELDS = "riverrun_fields"
"""Attribute of a serde's function that reads or writes tuples: the `ReadsFields` or `WritesFields` of objects."""


class ReadsFields(Protocol):
    """Reads bytes as objects with attributes, of which generated functions make a tuple without a call."""

    @property
    def known(self) -> Callable[[bytes], Any]:
        """Return the reader of objects; it raises to leave bytes to the serde's function, whose calls may change it."""

    @property
    def fields(self) -> Sequence[str | None]:
        """The attribute of each item of the tuple; None for an item that is always None."""

    def holding(self, row: Sequence[Any] | None) -> Any:
        """Return an object that has the items of a tuple as attributes; None for None."""


@dataclass(frozen=True, slots=True)
class WritesFields:
    """Writes tuples as objects, which generated functions make of the items without a tuple."""

    make: Callable[..., Any]
    encode: Callable[[Any], bytes]


FRAME = "riverrun_frame"
"""Attribute of a serde's function that reads bytes behind a head: the `ReadsFramed` that does so."""


class ReadsFramed(Protocol):
    """Reads bytes behind a head, such as the id of a schema, so that generated functions need no call of Python's for it."""

    @property
    def known(self) -> tuple[bytes, Callable[[bytes], Any]]:
        """Return a head, and the function that reads what begins with it; calls of the serde's function may change both."""

    @property
    def compared_bytes(self) -> int | None:
        """Number of bytes to compare with the head, before the function is called with all bytes.

        None if the function takes bytes without their head, and refuses those that begin with a zero byte: another head.
        """


@dataclass(frozen=True, slots=True)
class SerdePlace:
    """The place where a serde is used; serdes on a schema registry need it.

    Args:
        topic: The topic, or the changelog of a store, with the application's prefix; None if topics are chosen per record.
        registry: Settings of the schema registry (`[schema_registry]`). Never printed: they may hold secrets.
        registers: Whether the serde registers its schema. If not, it writes only the value that it has read last, with that
            value's schema id, if the schema is its own.
        finds_rows: Whether rows are found and partitioned by the bytes that the serde writes, which must not change.
    """

    topic: str | None
    is_key: bool
    registry: Mapping[str, Any] = field(repr=False)
    registers: bool = True
    finds_rows: bool = False


@takes_fields(serialize=function("value"), deserialize=function("data"), partition_key=optional(function("value")))
@dataclass(frozen=True)
class Serde(Generic[T]):
    """Converts between bytes and values (`org.apache.kafka.common.serialization.Serde`).

    >>> upper = Serde("upper", lambda text: text.upper().encode(), bytes.decode)
    >>> upper.deserialize(upper.serialize("abc"))
    'ABC'

    The two functions never see None: a null key or value is null bytes everywhere.

    Args:
        name: Shown in errors, and part of a topology's fingerprint.
        serialize: Value to bytes. May raise anything; hosts turn it into `SerializationError`.
        deserialize: Bytes to value. May raise anything; hosts turn it into `DeserializationError`.
        partition_key: Returns the bytes from which a sink computes the partition, if not the serialized key. Windowed keys
            hash their inner key only (Kafka Streams' `WindowedStreamPartitioner`).
        remake: A function and its arguments that create an equal serde. Encoders cannot be pickled; `remake` lets topologies
            with serdes travel to executors.
        value_type: Type of the values, for hosts that build columns: a Python type that msgspec can inspect.
            `Annotated[int, 16]` and the like stand for numbers of fewer than 64 bits, `Any` for any JSON. None if the type is
            unknown: columns then hold the bytes.
        immutable_types: Classes of immutable values that survive a round trip unchanged. A store hands out one object of such
            a value many times; of other values it keeps the bytes, and deserializes them on each read.
        exact: Whether stores refuse values that a round trip would change, such as a tuple that becomes a list.
        plain: Converts a value to `value_type`, if values have another type, such as a message of Protobuf.
        place: Returns the serde for one place, for serdes that depend on it; None for all others. See `placed`.
        of_text: Reads a value from text, as `shown` or `plain` shows it in JSON; None if it is read as JSON alone.
        shown: Converts a value to what JSON has, for display, so that `of_text` reads it as it was; None if `plain` does.
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
    of_text: Callable[[str], T] | None = field(default=None, repr=False, compare=False)
    shown: Callable[[T], Any] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by `remake`, or by the functions if they can be pickled."""
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
                self.of_text,
                self.shown,
            ),
        )


def item_of(function: Any) -> Callable[[Any], Any] | None:
    """Return the function of the only item, of a serde's function for tuples of one item; None for all others."""
    found: Callable[[Any], Any] | None = getattr(function, "__dict__", {}).get(ITEM)
    return found


def reading_fields(function: Callable[[bytes], Any], reader: ReadsFields) -> Callable[[bytes], Any]:
    """Return a serde's function that reads tuples, of which generated functions may take the items from objects."""
    setattr(function, FIELDS, reader)
    return function


def fields_of(function: Any) -> ReadsFields | None:
    """Return the reader that turns tuples of a serde's function into objects; None if the function has to be called."""
    found: ReadsFields | None = getattr(function, "__dict__", {}).get(FIELDS)
    return found


def writing_fields(function: Callable[[Any], bytes], writer: WritesFields) -> Callable[[Any], bytes]:
    """Return a serde's function that writes tuples, which generated functions may write as objects."""
    setattr(function, FIELDS, writer)
    return function


def written_fields_of(function: Any) -> WritesFields | None:
    """Return the writer that turns tuples of a serde's function into objects; None if the function has to be called."""
    found: WritesFields | None = getattr(function, "__dict__", {}).get(FIELDS)
    return found


def reading_framed(function: Callable[[bytes], Any], frame: ReadsFramed) -> Callable[[bytes], Any]:
    """Return a serde's function that reads bytes behind a head, which generated functions may compare themselves."""
    setattr(function, FRAME, frame)
    return function


def frame_of(function: Any) -> ReadsFramed | None:
    """Return the reader of the bytes behind the head of a serde's function; None if the function has to be called."""
    found: ReadsFramed | None = getattr(function, "__dict__", {}).get(FRAME)
    return found


def plain_reader(serde: Serde[Any]) -> Callable[[bytes], Any]:
    """Return the function that deserializes bytes to a value of `Serde.value_type`, for columns and for display."""
    read, plain = serde.deserialize, serde.plain
    return read if plain is None else lambda data: plain(read(data))


def shown_reader(serde: Serde[Any]) -> Callable[[bytes], Any]:
    """Return the function that deserializes bytes to a value for display, which `Serde.of_text` reads as it was."""
    read, show = serde.deserialize, serde.shown
    return plain_reader(serde) if show is None else lambda data: show(read(data))


def field_names(value_type: Any) -> tuple[str, ...] | None:
    """Return the names of the fields that all values of a type have; empty for single values, None if values may differ.

    >>> import dataclasses
    >>> field_names(dataclasses.make_dataclass("Click", [("user", str)])), field_names(int), field_names(Any)
    (('user',), (), None)
    """
    found = only_type(value_type)
    if isinstance(found, inspect.TypedDictType):
        return tuple(found.cls.__annotations__)
    if isinstance(found, inspect.StructType | inspect.DataclassType) and not getattr(found, "array_like", False):
        return tuple(each.encode_name for each in found.fields)
    return None if isinstance(found, inspect.AnyType | inspect.DictType) else ()


def only_type(value_type: Any) -> inspect.Type | None:
    """Return the one type of all values but None; `AnyType` if there are several, None without a type."""
    found = None if value_type is None else inspect.type_info(value_type)
    while isinstance(found, inspect.Metadata | inspect.UnionType):
        types = [found.type] if isinstance(found, inspect.Metadata) else found.types
        some = [each for each in types if not isinstance(each, inspect.NoneType)]
        found = some[0] if len(some) == 1 else inspect.AnyType()
    return found


def refusal(serde: Serde[Any], error: Exception) -> str:
    """Describe why a serde cannot read or write something. Leaves out the error's hint (`hint_of`).

    >>> refusal(Serde("upper", str.upper, bytes.decode), ValueError("no text"))
    'serde upper refuses it (ValueError: no text)'
    """
    reason = error.message if isinstance(error, StreamsError) else error
    return f"serde {serde.name} refuses it ({type(error).__name__}: {reason})"


def hint_of(error: Exception) -> str | None:
    """Return the hint of a serde's error, such as that of a schema registry; None if there is none."""
    return error.hint if isinstance(error, StreamsError) else None


def placed(serde: Serde[Any], place: SerdePlace) -> Serde[Any]:
    """Return the serde for one place: unchanged unless the serde, or one inside it, depends on where it is used.

    >>> upper = Serde("upper", lambda text: text.upper().encode(), bytes.decode)
    >>> placed(upper, SerdePlace("words", is_key=True, registry={})) is upper
    True
    """
    if serde.place is not None:
        return serde.place(place)
    function, arguments = serde.remake or (None, ())
    inner = [part for part in arguments if isinstance(part, Serde)]
    if function is None or not needs_place(serde):
        return serde
    # Each part of a composite serde, such as one side of a join, has its own schema and subject.
    places = iter([place] if len(inner) == 1 else [_part_of(place, number) for number in range(len(inner))])
    made: Serde[Any] = function(
        *(placed(part, next(places)) if isinstance(part, Serde) else part for part in arguments)
    )
    return made


def needs_place(serde: Serde[Any]) -> bool:
    """Return whether a serde, or one inside it, depends on where it is used."""
    function, parts = serde.remake or (None, ())
    # It has its place already.
    if function is placed:
        return False
    return serde.place is not None or any(isinstance(part, Serde) and needs_place(part) for part in parts)


def is_placed(serde: Serde[Any]) -> bool:
    """Return whether a serde, or one inside it, depended on its place, and has it: its bytes need a schema registry."""
    function, parts = serde.remake or (None, ())
    return function is placed or any(isinstance(part, Serde) and is_placed(part) for part in parts)


def comparing(serde: Serde[Any]) -> Serde[Any]:
    """Return a serde that writes a value, which it has just read, as the given one does, and changes nothing in a registry."""
    function, arguments = serde.remake or (None, ())
    if function is placed:
        unplaced, place = arguments
        unregistered: Serde[Any] = placed(unplaced, replace(place, registers=False))
        return unregistered
    if function is None or not is_placed(serde):
        return serde
    made: Serde[Any] = function(*(comparing(part) if isinstance(part, Serde) else part for part in arguments))
    return made


def _part_of(place: SerdePlace, number: int) -> SerdePlace:
    return replace(place, topic=None if place.topic is None else f"{place.topic}-{number}")
