"""Confluent's wire format: a 0 byte, the schema's id in four bytes (big-endian), and the payload of the format.

In a topology, a serde has no registry yet. Before use it is `placed`, which binds it to a registry and a topic. The
first record of a schema asks the registry; all further records need a dict look-up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from riverrun.errors import ConfigError, SchemaError
from riverrun.schemas.registry import RegistryClient, registry_of
from riverrun.schemas.rules import check_read, check_written
from riverrun.schemas.subjects import Registration, check_settings
from riverrun.serde.api import Serde, SerdePlace, immutable_types, placed, reading_framed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Write: TypeAlias = "Callable[[Any], bytes]"
    Read: TypeAlias = "Callable[[bytes], Any]"

_HEAD = struct.Struct(">bI")
HEAD_BYTES = _HEAD.size
MAGIC = 0
_NO_HEAD = b"\xff"
# Generated functions follow so many changes of the schema, then none: a topic may keep alternating.
_MOST_TURNS = 8


@dataclass(frozen=True, slots=True)
class Payload:
    """How payloads are read, whatever their schema.

    Args:
        read: Reads a payload, and refuses bytes that begin with a zero byte.
        begins_at: Returns the position of the payload in a value, which has been read before.
    """

    read: Read
    begins_at: Callable[[bytes], int]


@dataclass(frozen=True, slots=True)
class Texts:
    """Values as people see and write them: `shown` makes what JSON has of one, `of_text` reads one from text."""

    shown: Callable[[Any], Any]
    of_text: Callable[[str], Any]


class SchemaFormat(Protocol):
    """The operations of Avro, Protobuf or JSON Schema, with the arguments of a serde."""

    @property
    def form(self) -> str | None:
        """Return the form in which the registry hands out schemas; None for the registered form."""

    def record_name(self, schema: Any) -> str | None:
        """The full name of a schema's records; None if they have none."""

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:
        """Return the schema to write with (`Schema`), after registering the schemas that it references, or None."""

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        """Return the function that writes values with a schema, after the magic byte and the id."""

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads values written with a schema; its input includes the magic byte and the id."""

    @property
    def payload(self) -> Payload | None:
        """Return how payloads of all schemas are read; None if a payload cannot be read without its schema."""


def framed(
    name: str,
    made_of: SchemaFormat,
    settings: Mapping[str, Any],
    remake: tuple[Callable[..., Any], tuple[Any, ...]],
    value_type: Any,
    plain: Callable[[Any], Any] | None = None,
    *,
    is_same: Callable[[Any, Any, RegistryClient], bool],
    texts: Callable[[RegistryClient], Texts] | None = None,
) -> Serde[Any]:
    """Return a serde for a topology, which gets its registry when an application starts.

    `settings` override those of `[schema_registry]`; `is_same` returns whether a registry has one id for two schemas.
    """
    check_settings(name, settings)
    latest: list[Serde[Any]] = []
    immutable = immutable_types(value_type) if plain is None else frozenset[type]()

    def somewhere() -> Serde[Any]:
        if not latest:
            message = f"Serde {name} is used outside an application, where it has no schema registry"
            raise ConfigError(message, hint="Applications and the test driver provide one.")
        return latest[-1]

    def serialize(value: Any) -> bytes:
        return somewhere().serialize(value)

    def deserialize(data: bytes) -> Any:
        return somewhere().deserialize(data)

    def place(at: SerdePlace) -> Serde[Any]:
        chosen = {**at.registry, **settings}
        if at.finds_rows and chosen.get("use.latest.version", False):
            message = (
                f"Serde {name} would write keys of {at.topic or 'topics that are chosen per record'} with the latest version of"
                " a subject (use.latest.version). The id of a schema is part of a key's bytes: after the next version is"
                " registered, each key is another key, and its rows are not found"
            )
            hint = 'Pass config={"use.latest.version": False} to the serde of the keys, or set it for serdes of values only.'
            raise ConfigError(message, hint=hint)
        use = _Use(made_of, at, chosen, is_same)
        as_text = None if texts is None else cache(partial(_texts_at, texts, at))
        if not at.registers:
            read, write = use.comparing()
            return Serde(name=name, serialize=write, deserialize=read)
        own = (placed, (unplaced, at))
        made: Serde[Any] = Serde(
            name=name,
            serialize=use.serializer(),
            deserialize=use.deserializer(),
            partition_key=None,
            remake=own,
            value_type=value_type,
            immutable_types=immutable,
            exact=True,
            plain=plain,
            of_text=None if as_text is None else lambda text: as_text().of_text(text),
            shown=None if as_text is None else lambda value: as_text().shown(value),
        )
        # Bytes outside topics, such as a join's hash, are written for the latest place.
        latest[:] = [made]
        return made

    unplaced: Serde[Any] = Serde(
        name=name,
        serialize=serialize,
        deserialize=deserialize,
        partition_key=None,
        remake=remake,
        value_type=value_type,
        immutable_types=immutable,
        exact=True,
        place=place,
        plain=plain,
    )
    return unplaced


def _texts_at(texts: Callable[[RegistryClient], Texts], place: SerdePlace) -> Texts:
    return texts(registry_of(place.registry))


class _Frame:
    """Lets generated functions read values of one schema, the latest, without a call of `deserialize` (`ReadsFramed`)."""

    def __init__(self, made_of: SchemaFormat, known: tuple[bytes, Read]) -> None:
        self.known = self._any = known
        self.schema = b""
        self._payload = made_of.payload
        self._turns = 0

    @property
    def compared_bytes(self) -> int | None:
        """Return the length of the magic byte and the id; None for formats that read payloads of any schema."""
        return HEAD_BYTES if self._payload is None else None

    def turn(self, schema: bytes, data: bytes, read: Read) -> None:
        """Switch to the schema (magic byte and id) of a value that was just read."""
        self._turns += 1
        if self._turns > _MOST_TURNS:
            self.known = self._any
        elif self._payload is None:
            self.known = schema, read
        else:
            self.known = data[: self._payload.begins_at(data)], self._payload.read
        self.schema = schema


class _Use:
    """A serde in one place."""

    def __init__(
        self,
        made_of: SchemaFormat,
        place: SerdePlace,
        settings: Mapping[str, Any],
        is_same: Callable[[Any, Any, RegistryClient], bool],
    ) -> None:
        self._is_same = is_same
        self._format = made_of
        self._place = place
        self._settings = settings

    def serializer(self) -> Write:
        write: Write | None = None

        def serialize(value: Any) -> bytes:
            nonlocal write
            # With the first value, not when the application starts: a serde that never writes asks no registry.
            if write is None:
                write = self._writer()
            return write(value)

        return serialize

    def deserializer(self) -> Read:
        readers: dict[bytes, Read] = {}
        known = readers.get

        def deserialize(data: bytes) -> Any:
            head = data[:5]
            read = known(head)
            if read is None:
                read = readers[head] = self._reader(data)
            value = read(data)
            if head != frame.schema:
                frame.turn(head, data, read)
            return value

        frame = _Frame(self._format, (_NO_HEAD, deserialize))
        return reading_framed(deserialize, frame)

    def comparing(self) -> tuple[Read, Write]:
        """Return functions that read a value, and write it again as its bytes would be in a topic of the application."""
        deserialize, last = self.deserializer(), b""
        writers: dict[bytes, Write] = {}

        def read(data: bytes) -> Any:
            nonlocal last
            last = data[:HEAD_BYTES]
            return deserialize(data)

        def write(value: Any) -> bytes:
            if last not in writers:
                writers[last] = self._writer_after(last)
            return writers[last](value)

        return read, write

    def _writer_after(self, head: bytes) -> Write:
        """Return the function that writes values with the schema of a head; it writes nothing if that is another schema."""
        registry, registration = registry_of(self._place.registry), Registration.of(self._settings)
        written = registry.schema(_HEAD.unpack(head)[1], self._format.form)
        own = self._format.prepared(registry, self._place, replace(registration, auto_register=False))
        if own is not None and not self._is_same(own, written, registry):
            return lambda _: b""
        return self._format.writer(written, head, registry)

    def _writer(self) -> Write:
        registry, registration = registry_of(self._place.registry), Registration.of(self._settings)
        schema = self._format.prepared(registry, self._place, registration)
        if schema is None and not registration.use_latest:
            message = "A serde without a schema can read, but not write"
            raise SchemaError(message, hint="Pass a type or schema=, or set use.latest.version.")
        subject = registration.subject(self._place, None if schema is None else self._format.record_name(schema))
        refuse = (
            _accept if registration.ignore_rules else partial(check_written, what=f"the schema of subject {subject}")
        )
        if registration.use_latest:
            found = registry.latest(subject)
            schema = found.schema
        elif registration.auto_register:
            # A registry copies the rules of the latest version to the next one: it must not get a version without them.
            if not registration.ignore_rules and (newest := registry.newest(subject)) is not None:
                refuse(newest.schema)
            found = registry.registered(subject, schema, normalize=registration.normalize)
        else:
            found = registry.known(subject, schema, normalize=registration.normalize)
        refuse(found.schema)
        return self._format.writer(schema, _HEAD.pack(MAGIC, found.schema_id), registry)

    def _reader(self, data: bytes) -> Read:
        if len(data) < HEAD_BYTES or data[0] != MAGIC:
            begin = data[:HEAD_BYTES].hex() or "nothing"
            raise ValueError(f"a value with a schema begins with 00 and the schema's id, four bytes, not with {begin}")
        registry = registry_of(self._place.registry)
        _, schema_id = _HEAD.unpack_from(data)
        schema = registry.schema(schema_id, self._format.form)
        if not Registration.of(self._settings).ignore_rules:
            check_read(schema, f"schema {schema_id}")
        return self._format.reader(schema, registry)


def _accept(_schema: Any) -> None:
    return
