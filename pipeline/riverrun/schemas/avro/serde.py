"""Avro: plain values, or any type that msgspec supports, with the reader's schema resolved against the writer's."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from riverrun.decoders import converter
from riverrun.extras import require_extra
from riverrun.schemas.avro.parsing import parsed
from riverrun.schemas.avro.reading import NotGenerated, generated_reader
from riverrun.schemas.avro.structs import struct_of
from riverrun.schemas.avro.types import schema_of, type_of
from riverrun.schemas.avro.writing import generated_writer, plain_writer
from riverrun.schemas.framed import HEAD_BYTES, framed
from riverrun.schemas.schema_text import client_schema, json_text
from riverrun.schemas.subjects import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import Registry
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace

T = TypeVar("T")

_KEPT = (bytes, dt.datetime, dt.date, dt.time, decimal.Decimal, uuid.UUID)
"""Types that the library writes and reads unchanged."""


@overload
def Avro(
    type_: type[T],
    *,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[T]: ...


@overload
def Avro(
    type_: None = None,
    *,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]: ...


def Avro(  # noqa: N802
    type_: type[Any] | None = None,
    *,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]:
    """Return a serde of Avro through a schema registry (`SpecificAvroSerde`, `GenericAvroSerde`).

    Avro's rules resolve the writer's schema against the serde's. A serde without a type and a schema reads values with the
    writer's schema.

    >>> class Flight(msgspec.Struct):
    ...     carrier: str
    ...     delay: int | None = None
    >>> Avro(Flight).name
    'avro[Flight]'

    Args:
        type_: Type of the values: a `msgspec.Struct`, a dataclass, a TypedDict, or any other type that msgspec can decode. By
            default, records are dicts.
        schema: The schema, as JSON text or as parsed JSON; derived from the type by default.
        references: Registered schemas that the schema uses: name, subject and version of each.
        config: `auto.register.schemas`, `use.latest.version`, `normalize.schemas` and `subject.name.strategy`, where they
            differ from `[schema_registry]`.

    Raises:
        ConfigError: If the type has no Avro schema, the schema is invalid, or a setting is unknown.
        MissingExtraError: If the extra `schemas` is not installed.
    """
    require_extra("schemas")
    text = _text(schema_of(type_) if schema is None and type_ is not None else schema)
    made_of = AvroFormat(type_, text, tuple(Reference(*each) for each in references))
    settings = dict(config or {})
    remake = (_again, (type_, text, made_of.references, settings))
    if type_ is not None:
        value_type: Any = type_
    else:
        value_type = Any if text is None or references else type_of(json.loads(text))
    return framed(made_of.name, made_of, settings, remake, value_type)


def _again(
    type_: type[Any] | None, text: str | None, references: tuple[Reference, ...], settings: Mapping[str, Any]
) -> Serde[Any]:
    made: Serde[Any] = Avro(type_, schema=text, references=references, config=settings)
    return made


def _text(schema: str | Mapping[str, Any] | Sequence[Any] | None) -> str | None:
    """Return a schema as JSON text.

    Raises:
        ConfigError: If the schema is invalid.
    """
    if isinstance(schema, str) and schema.isidentifier():  # a primitive type's name
        return json.dumps(schema)
    return json_text(schema, "An Avro schema")


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """The parts of an Avro serde.

    Args:
        type_: Type of the values; None for plain values.
        text: The schema; None for the writer's.
        references: Schemas that the schema uses.
    """

    type_: type[Any] | None
    text: str | None
    references: tuple[Reference, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the serde."""
        if self.text is None:
            return "avro"
        return f"avro[{_name(json.loads(self.text))}]"

    def own(self) -> Any:
        """Return the schema."""
        return client_schema(self.text, "AVRO", self.references)

    @property
    def form(self) -> str | None:
        """Return None: schemas are fetched in the form in which they were registered."""
        return None

    def prepared(self, registry: Registry, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        """Return the schema; the schemas that it references are already registered."""
        return self.own()

    def record_name(self, schema: Any) -> str | None:
        """Return the full name of the schema's records, or the name of a primitive type; None for unions."""
        found = json.loads(schema.schema_str)
        return None if isinstance(found, list) else _name(found)

    def writer(self, schema: Any, head: bytes, registry: Registry) -> Write:
        """Return the function that writes values."""
        known = parsed(schema, registry)
        plain = plain_writer(known, head)
        return plain if self.type_ is None else _typed_writer(self.type_, known, head, plain)

    @property
    def payload(self) -> None:
        """Return None: Avro cannot be read without its schema."""
        return

    def reader(self, schema: Any, registry: Registry) -> Read:
        """Return the function that reads values written with a schema."""
        from fastavro import schemaless_reader  # noqa: PLC0415 - of an extra

        written, own, buffer = parsed(schema, registry), self.own(), io.BytesIO
        wanted = None if own is None or own.schema_str == schema.schema_str else parsed(own, registry)

        def plain(data: bytes) -> Any:
            return schemaless_reader(buffer(data[HEAD_BYTES:]), written, wanted)

        if self.type_ is None:
            return _fastest(written, wanted, plain)
        return _typed(self.type_, written, wanted, plain)


def _typed_writer(type_: Any, schema: Any, head: bytes, plain: Write) -> Write:
    """Return a function that writes values of a type; its objects are read directly if no value has to be converted."""
    to_builtins = msgspec.to_builtins

    def converted(value: Any) -> bytes:
        return plain(to_builtins(value, builtin_types=_KEPT))

    try:
        return generated_writer(schema, struct_of(type_, schema), head, converted)
    except NotGenerated:
        return converted


def _fastest(written: Any, wanted: Any, plain: Read) -> Read:
    """Return a generated function that reads as `plain` does, or `plain` if the schemas are not covered."""
    try:
        return generated_reader(written, wanted, None, plain)
    except NotGenerated:
        return plain


def _typed(type_: Any, written: Any, wanted: Any, plain: Read) -> Read:
    """Return a function that reads values of a type; its objects are made directly if no value has to be converted."""
    convert, read = converter(type_), _fastest(written, wanted, plain)

    def converted(data: bytes) -> Any:
        return convert(read(data))

    try:
        return generated_reader(written, wanted, struct_of(type_, written if wanted is None else wanted), converted)
    except NotGenerated:
        return converted


def _name(schema: Any) -> str:
    if isinstance(schema, list):
        return "|".join(map(_name, schema))
    if isinstance(schema, str):
        return schema
    name, namespace = schema.get("name"), schema.get("namespace")
    if name is None:
        return _name(schema["type"])
    return f"{namespace}.{name}" if namespace and "." not in name else str(name)
