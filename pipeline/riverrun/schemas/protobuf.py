"""Protobuf: messages of generated classes, or dicts."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from riverrun.errors import ConfigError, SchemaError
from riverrun.extras import require_extra
from riverrun.schemas.framed import HEAD_BYTES, Payload, Texts, framed
from riverrun.schemas.protobuf_files import add_file, file_of, is_built_in, is_same_file
from riverrun.schemas.protobuf_types import filler_of, plain_of, reader_of_json, type_of, typed_of
from riverrun.serde.internal import varint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace

T = TypeVar("T")

_SERIALIZED = "serialized"
"""Form in which the registry returns schemas: file descriptors, as protoc writes them."""
# Confluent's short form for the indexes of a file's first message.
_FIRST = b"\0"
# An index has five bytes at most.
_MOST_BITS = 35
# Protobuf's own parsers have this limit of messages within each other.
_DEEPEST = 100


@overload
def Protobuf(
    message: type[T], *, dicts: Literal[False] = False, config: Mapping[str, Any] | None = None
) -> Serde[T]: ...


@overload
def Protobuf(
    message: type[Any] | None = None, *, dicts: bool = False, config: Mapping[str, Any] | None = None
) -> Serde[Any]: ...


def Protobuf(  # noqa: N802 - as JSON
    message: type[Any] | None = None, *, dicts: bool = False, config: Mapping[str, Any] | None = None
) -> Serde[Any]:
    """Return a serde of Protobuf through a schema registry (`KafkaProtobufSerde`).

    Files that the message's own file imports are registered first, under their names, as references.

    >>> from google.protobuf.duration_pb2 import Duration
    >>> Protobuf(Duration).name
    'protobuf[google.protobuf.Duration]'

    Args:
        message: The generated class of the message. By default, values are dicts, read by the writer's schema.
        dicts: Whether values are dicts rather than messages, with all fields under their names.
        config: `auto.register.schemas`, `use.latest.version`, `normalize.schemas` and `subject.name.strategy`, where they
            differ from `[schema_registry]`.

    Raises:
        ConfigError: If `message` is not a class of messages, or a setting is unknown.
        MissingExtraError: If the extra `schemas` is not installed.
    """
    require_extra("schemas")
    descriptor = getattr(message, "DESCRIPTOR", None)
    if message is not None and descriptor is None:
        message_ = f"{message!r} is not a class that protoc generated"
        raise ConfigError(message_, hint="Pass the class of the message: Protobuf(flights_pb2.Flight).")
    made_of = ProtobufFormat(message, is_plain=dicts or message is None)
    settings = dict(config or {})
    value_type = Any if descriptor is None else type_of(descriptor)
    as_plain = None if descriptor is None else _typed(descriptor, is_plain=made_of.is_plain)
    remake = (_again, (message, dicts, settings))
    return framed(
        made_of.name, made_of, settings, remake, value_type, as_plain, is_same=is_same_file, texts=made_of.texts
    )


def _typed(descriptor: Any, *, is_plain: bool) -> Callable[[Any], Any]:
    """Return the function that turns a dict or a message into a value for columns."""
    typed, plain = typed_of(descriptor), plain_of(descriptor)
    return typed if is_plain else lambda message: typed(plain(message))


def _again(message: type[Any] | None, dicts: bool, settings: Mapping[str, Any]) -> Serde[Any]:  # noqa: FBT001 - pickled
    made: Serde[Any] = Protobuf(message, dicts=dicts, config=settings)
    return made


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """The parts of a Protobuf serde.

    Args:
        message: The class of messages; None for the writer's.
    """

    message: type[Any] | None
    is_plain: bool

    @property
    def name(self) -> str:
        return "protobuf" if self.message is None else f"protobuf[{_descriptor(self.message).full_name}]"

    @property
    def form(self) -> str | None:
        """Return the form of schemas: serialized file descriptors."""
        return _SERIALIZED

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        """Return the schema of the message's file, after registering the files that it imports."""
        if self.message is None:
            return None
        return _schema(_descriptor(self.message).file, registry, registration)

    def record_name(self, schema: Any) -> str | None:  # noqa: ARG002 - a file may have several messages
        return None if self.message is None else str(_descriptor(self.message).full_name)

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        """Return the function that writes values: the head, the message's place in its file, and the message."""
        kind: Any = self.message or _class_at(schema, registry, [0])
        start = head + _index_bytes(_indexes_in(kind.DESCRIPTOR, schema, registry))
        if self.is_plain:
            fill = filler_of(kind.DESCRIPTOR)
            # Deterministic, as equal keys must have equal bytes: Protobuf writes the entries of a map in any order.
            return lambda value: start + fill(kind(), value).SerializeToString(deterministic=True)

        def write(value: Any) -> bytes:
            if value.__class__ is not kind:
                raise TypeError(f"{type(value).__name__} is not {kind.DESCRIPTOR.full_name}")
            return start + value.SerializeToString(deterministic=True)  # type: ignore[no-any-return]

        return write

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads values written with a schema."""
        if self.message is None:
            return _ReaderOfAll(schema, registry)
        kind: Any = self.message
        parse, plain = kind.FromString, plain_of(kind.DESCRIPTOR) if self.is_plain else None

        def read(data: bytes) -> Any:
            # Nearly all values are of their file's first message.
            at = HEAD_BYTES + 1 if data[HEAD_BYTES] == 0 else _read_indexes(data)[1]
            found = parse(data[at:])
            return found if plain is None else plain(found)

        return read

    @property
    def payload(self) -> Payload | None:
        """Return the parser of the message; None if values are dicts."""
        # A zero byte begins no field of Protobuf, so the parser refuses bytes that still have a head.
        kind: Any = self.message
        return None if self.is_plain else Payload(kind.FromString, lambda data: _read_indexes(data)[1])

    def texts(self, registry: RegistryClient) -> Texts:  # noqa: ARG002 - the class has the descriptor
        """Return how values are shown to people: as dicts, whose bytes are base64."""
        if self.message is None:
            return Texts(_same, msgspec.json.decode)
        kind: Any = self.message
        plain, read = plain_of(kind.DESCRIPTOR), reader_of_json(kind.DESCRIPTOR)
        fill = filler_of(kind.DESCRIPTOR)

        def of_text(text: str) -> Any:
            value = read(msgspec.json.decode(text))
            message = fill(kind(), value)
            return plain(message) if self.is_plain else message

        return Texts(_same if self.is_plain else plain, of_text)


def _same(value: Any) -> Any:
    return value


class _ReaderOfAll:
    """Reads every message of a file."""

    def __init__(self, schema: Any, registry: RegistryClient) -> None:
        self._schema = schema
        self._registry = registry
        self._known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def __call__(self, data: bytes) -> Any:
        indexes, at = _read_indexes(data)
        known = self._known.get(tuple(indexes))
        if known is None:
            kind = _class_at(self._schema, self._registry, indexes)
            known = self._known[tuple(indexes)] = kind.FromString, plain_of(kind.DESCRIPTOR)
        parse, plain = known
        return plain(parse(data[at:]))


def _descriptor(message: Any) -> Any:
    return message.DESCRIPTOR


def _schema(file: Any, registry: RegistryClient, registration: Registration) -> Any:
    """Return the schema of a file, with the files that it imports as references."""
    from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - of an extra

    references = []
    for other in file.dependencies:
        if is_built_in(other.name):
            continue
        schema = _schema(other, registry, registration)
        if registration.auto_register:
            # Files must be registered before those that import them, which refer to their versions.
            registry.registered(other.name, schema, normalize=registration.normalize)
        known = registry.known(other.name, schema, normalize=registration.normalize)
        references.append(SchemaReference(other.name, other.name, known.version))
    return Schema(_text(file), "PROTOBUF", references)


def _text(file: Any) -> str:
    return base64.standard_b64encode(file.serialized_pb).decode()


def _indexes_in(descriptor: Any, schema: Any, registry: RegistryClient) -> list[int]:
    """Return the place of a message in a schema, which may be another version of its file."""
    if schema is None or schema.schema_str == _text(descriptor.file):
        return _indexes(descriptor)
    file = _file(schema, registry)
    try:
        found = file.pool.FindMessageTypeByName(descriptor.full_name)
    except KeyError:
        found = None
    if found is None or found.file.name != file.name:
        message = f"The schema to write with has no message {descriptor.full_name}"
        raise SchemaError(message, hint="Register the schema of the message, or unset use.latest.version.")
    return _indexes(found)


def _indexes(descriptor: Any) -> list[int]:
    """Return the place of a message in its file: the numbers of its enclosing messages and its own, outermost first."""
    around = descriptor.containing_type
    if around is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_indexes(around), [each.name for each in around.nested_types].index(descriptor.name)]


def _index_bytes(indexes: list[int]) -> bytes:
    """Return the indexes as zigzag varints after their count; a single 0 byte for the first message.

    >>> _index_bytes([0]).hex(), _index_bytes([1]).hex(), _index_bytes([0, 70]).hex()
    ('00', '0202', '04008c01')
    """
    return _FIRST if indexes == [0] else b"".join(map(varint, (len(indexes), *indexes)))


def _read_indexes(data: bytes) -> tuple[list[int], int]:
    """Return the indexes after the head, and the position of the message."""
    try:
        count, at = _read_varint(data, HEAD_BYTES)
        if count == 0:
            return [0], at
        if count > _DEEPEST:
            raise ValueError(f"a message is within {count} others; Protobuf allows {_DEEPEST}")
        indexes = []
        for _ in range(count):
            index, at = _read_varint(data, at)
            indexes.append(index)
        if count < 0 or min(indexes) < 0:
            raise ValueError(f"the indexes of a message are negative: {data[HEAD_BYTES:at].hex()}")
    except IndexError as error:
        raise ValueError(f"{len(data)} bytes are too few for the indexes of a message") from error
    return indexes, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MOST_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:  # noqa: PLR2004 - the eighth bit says that more follows
            return (value >> 1) ^ -(value & 1), at
    raise ValueError(f"an index of a message has more than {_MOST_BITS} bits")


def _class_at(schema: Any, registry: RegistryClient, indexes: list[int]) -> Any:
    """Return the class of a schema's message."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - of an extra

    try:
        found = list(_file(schema, registry).message_types_by_name.values())[indexes[0]]
        for index in indexes[1:]:
            found = found.nested_types[index]
    except IndexError as error:
        raise SchemaError(f"The schema of a message has no message at {indexes}") from error
    return GetMessageClass(found)


def _file(schema: Any, registry: RegistryClient) -> Any:
    """Return the descriptor of a schema's file, in a pool with all that it imports."""
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - of an extra

    if schema.schema_type != "PROTOBUF":
        raise SchemaError(f"A record has a schema of {schema.schema_type or 'AVRO'}, but the serde reads Protobuf")
    try:
        # A separate pool: one cannot have two versions of a file.
        return _add(DescriptorPool(), "default", schema, registry)
    except (RecursionError, TypeError, ValueError) as error:
        message = f"The Protobuf schema cannot be read: {error}"
        raise SchemaError(message, hint="Pass the generated class: Protobuf(flights_pb2.Flight).") from error


def _add(pool: Any, name: str, schema: Any, registry: RegistryClient) -> Any:
    """Add the file of a schema to a pool, after the files that it imports."""
    for each in schema.references or ():
        _add(pool, each.name, registry.version(each.subject, each.version, _SERIALIZED).schema, registry)
    return add_file(pool, file_of(schema.schema_str, name))
