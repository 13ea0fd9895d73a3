"""Confluent's wire format: a byte 0, the id of the schema in four bytes, big-endian, and what the format writes.

A serde in a topology knows no registry yet. Where it is used, it is `placed`: from then on it has one, and a topic. The first
record of a schema asks the registry; all others need a look into a dict.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pipeline.errors import ConfigError, SchemaError
from pipeline.schemas.registry import Registry, registry_of
from pipeline.schemas.subjects import Registration, check_settings
from pipeline.serde.api import Serde, SerdePlace, placed
from pipeline.serde.immutable import immutable_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Write: TypeAlias = "Callable[[Any], bytes]"
    Read: TypeAlias = "Callable[[bytes], Any]"

_HEAD = struct.Struct(">bI")
HEAD_BYTES = _HEAD.size
MAGIC = 0


class SchemaFormat(Protocol):
    """Avro, Protobuf or JSON Schema, with what a serde was made of."""

    @property
    def form(self) -> str | None:
        """How the registry is to hand schemas out; None as they are."""
        ...

    def record_name(self, schema: Any) -> str | None:
        """The full name of a schema's records; None if they have none."""
        ...

    def prepared(self, registry: Registry, place: SerdePlace, registration: Registration) -> Any:
        """The schema of what is written (`Schema`), after those that it refers to were registered; None if it has none."""
        ...

    def writer(self, schema: Any, head: bytes, registry: Registry) -> Write:
        """Return the function that writes values with a schema, behind the magic byte and the id."""
        ...

    def reader(self, schema: Any, registry: Registry) -> Read:
        """Return the function that reads values written with a schema; it is given the magic byte and the id as well."""
        ...


def framed(
    name: str,
    made_of: SchemaFormat,
    settings: Mapping[str, Any],
    remake: tuple[Callable[..., Any], tuple[Any, ...]],
    value_type: Any,
    plain: Callable[[Any], Any] | None = None,
) -> Serde[Any]:
    """A serde of a topology, which learns its registry when an application is opened.

    Args:
        name: Its name.
        made_of: The format.
        settings: Its own settings; they go before those of `[schema_registry]`.
        remake: Makes it again, in another process.
        value_type: What values are, for columns.
        plain: Makes of a value what `value_type` says, where it is something else.

    Raises:
        ConfigError: If a setting is unknown.
    """
    check_settings(name, settings)
    latest: list[Serde[Any]] = []
    immutable = immutable_types(value_type) if plain is None else frozenset[type]()

    def somewhere() -> Serde[Any]:
        if not latest:
            message = f"Serde {name} is used outside of an application, where it has no schema registry"
            raise ConfigError(message, hint="Applications and the test driver give it theirs.")
        return latest[-1]

    def serialize(value: Any) -> bytes:
        return somewhere().serialize(value)

    def deserialize(data: bytes) -> Any:
        return somewhere().deserialize(data)

    def place(at: SerdePlace) -> Serde[Any]:
        use = _Use(made_of, at, {**at.registry, **settings})
        own = (placed, (unplaced, at))
        made: Serde[Any] = Serde(
            name, use.serializer(), use.deserializer(), None, own, value_type, immutable, exact=True, plain=plain
        )
        latest[:] = [made]  # what is in no topic, as a hash of a join, is written as where the serde was placed last
        return made

    unplaced: Serde[Any] = Serde(
        name, serialize, deserialize, None, remake, value_type, immutable, exact=True, place=place, plain=plain
    )
    return unplaced


class _Use:
    """A serde in one place."""

    def __init__(self, made_of: SchemaFormat, place: SerdePlace, settings: Mapping[str, Any]) -> None:
        self._format = made_of
        self._place = place
        self._settings = settings

    def serializer(self) -> Write:
        write: Write | None = None

        def serialize(value: Any) -> bytes:
            nonlocal write
            if write is None:
                write = self._writer()
            return write(value)

        return serialize

    def deserializer(self) -> Read:
        readers: dict[bytes, Read] = {}
        known = readers.get

        def deserialize(data: bytes) -> Any:
            read = known(data[:5])
            if read is None:
                read = readers[data[:5]] = self._reader(data)
            return read(data)

        return deserialize

    def _writer(self) -> Write:
        registry, registration = registry_of(self._place.registry), Registration.of(self._settings)
        schema = self._format.prepared(registry, self._place, registration)
        if schema is None and not registration.use_latest:
            message = "A serde without a schema reads whatever there is, and writes nothing"
            raise SchemaError(message, hint="Give it a type or schema=, or set use.latest.version.")
        subject = registration.subject(self._place, None if schema is None else self._format.record_name(schema))
        if registration.use_latest:
            latest = registry.latest(subject)
            schema, schema_id = latest.schema, latest.schema_id
        elif registration.auto_register:
            schema_id = registry.registered(subject, schema, normalize=registration.normalize)
        else:
            schema_id = registry.known(subject, schema, normalize=registration.normalize).schema_id
        return self._format.writer(schema, _HEAD.pack(MAGIC, schema_id), registry)

    def _reader(self, data: bytes) -> Read:
        if len(data) < HEAD_BYTES or data[0] != MAGIC:
            begin = data[:HEAD_BYTES].hex() or "nothing"
            message = f"a value with a schema begins with 00 and the schema's id, four bytes, not with {begin}"
            raise ValueError(message)
        registry = registry_of(self._place.registry)
        _, schema_id = _HEAD.unpack_from(data)
        return self._format.reader(registry.schema(schema_id, self._format.form), registry)
