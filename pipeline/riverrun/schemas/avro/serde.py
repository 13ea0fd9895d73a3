"""Avro: plain values, or any type that msgspec supports, with the reader's schema resolved against the writer's."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from riverrun.decoders import converter, json_decoder
from riverrun.errors import SchemaError
from riverrun.extras import require_extra
from riverrun.generated import NotGenerated
from riverrun.schemas.avro.parsing import is_same_schema, parsed, parsed_text
from riverrun.schemas.avro.plain_reading import plain_reader
from riverrun.schemas.avro.reading import generated_reader
from riverrun.schemas.avro.types import schema_of, struct_of, tags_of, type_of
from riverrun.schemas.avro.values import JsonForm, Tags
from riverrun.schemas.avro.writing import generated_writer, writer_of
from riverrun.schemas.framed import Texts, framed
from riverrun.schemas.schema_text import Reference, client_schema, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import UnionType

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace

T = TypeVar("T")

_KEPT = (bytes, dt.datetime, dt.date, dt.time, decimal.Decimal, uuid.UUID)
"""Types that are written and read unchanged."""


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
    type_: UnionType,
    *,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]: ...


@overload
def Avro(
    type_: None = None,
    *,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]: ...


def Avro(  # noqa: N802
    type_: type[Any] | UnionType | None = None,
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
        type_: Type of the values: a `msgspec.Struct`, a dataclass, a TypedDict, or any other type that msgspec can decode, such
            as a union of structs with tags. By default, records are dicts.
        schema: The schema, as JSON text or as parsed JSON; derived from the type by default.
        references: Registered schemas that the schema uses: name, subject and version of each.
        config: `auto.register.schemas`, `use.latest.version`, `normalize.schemas` and `subject.name.strategy`, where they
            differ from `[schema_registry]`.

    Raises:
        ConfigError: If the type has no Avro schema, or does not distinguish branches of a union, the schema is invalid, or a
            setting is unknown.
        MissingExtraError: If the extra `schemas` is not installed.
    """
    require_extra("schemas")
    text = _text(schema_of(type_) if schema is None and type_ is not None else schema)
    made_of = AvroFormat(type_, text, tuple(Reference(*each) for each in references))
    if text is not None and not references:
        made_of.tags(parsed_text(text))
    settings = dict(config or {})
    remake = (_again, (type_, text, made_of.references, settings))
    if type_ is not None:
        value_type: Any = type_
    else:
        value_type = Any if text is None or references else type_of(json.loads(text))
    return framed(made_of.name, made_of, settings, remake, value_type, is_same=is_same_schema, texts=made_of.texts)


def _again(type_: Any, text: str | None, references: tuple[Reference, ...], settings: Mapping[str, Any]) -> Serde[Any]:
    made: Serde[Any] = Avro(type_, schema=text, references=references, config=settings)
    return made


def _text(schema: str | Mapping[str, Any] | Sequence[Any] | None) -> str | None:
    # The name of a primitive type, which users write without quotes.
    if isinstance(schema, str) and schema.isidentifier():
        return json.dumps(schema)
    return json_text(schema, "An Avro schema")


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """The parts of an Avro serde.

    Args:
        type_: None for plain values.
        text: The schema; None for the writer's.
    """

    type_: Any
    text: str | None
    references: tuple[Reference, ...] = ()

    @property
    def name(self) -> str:
        if self.text is None:
            return "avro"
        return f"avro[{_name(json.loads(self.text))}]"

    def own(self) -> Any:
        return client_schema(self.text, "AVRO", self.references)

    @property
    def form(self) -> str | None:
        """Return None: schemas are fetched in the form in which they were registered."""
        return None

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        """Return the schema; the schemas that it references are already registered."""
        return self.own()

    def record_name(self, schema: Any) -> str | None:
        """Return the full name of the schema's records, or the name of a primitive type; None for unions."""
        found = json.loads(schema.schema_str)
        return None if isinstance(found, list) else _name(found)

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        known = _parsed(schema, registry)
        tags = self.tags(known)
        plain = writer_of(known, head, tags)
        return plain if self.type_ is None else _typed_writer(self.type_, known, head, plain)

    def tags(self, schema: Any) -> Tags:
        """Return how records of a schema in unions of several name their branch."""
        return Tags() if self.type_ is None else tags_of(self.type_, schema)

    @property
    def payload(self) -> None:
        """Return None: Avro cannot be read without its schema."""
        return

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads values written with a schema."""
        written, own = _parsed(schema, registry), self.own()
        wanted = None if own is None or own.schema_str == schema.schema_str else parsed(own, registry)
        tags = self.tags(written if wanted is None else wanted)
        read = _fastest(written, wanted, tags)
        return read if self.type_ is None else _typed(self.type_, written, wanted, read)

    def texts(self, registry: RegistryClient) -> Texts:
        """Return how values are shown to people."""
        # Plain values are shown by the schema, as JSON alone does not distinguish branches of unions.
        own = self.own()
        if self.type_ is not None or own is None:
            return Texts(_same, json_decoder(Any if self.type_ is None else self.type_).decode)
        form = JsonForm.of(parsed(own, registry))
        return Texts(form.shown, form.of_text)


def _same(value: Any) -> Any:
    return value


def _parsed(schema: Any, registry: RegistryClient) -> Any:
    if schema.schema_type not in {None, "AVRO"}:
        raise SchemaError(f"A record has a schema of {schema.schema_type}, but the serde reads Avro")
    return parsed(schema, registry)


def _fastest(written: Any, wanted: Any, tags: Tags) -> Read:
    """Return a generated function that reads plain values, or the plain one if schemas are not covered."""
    plain = plain_reader(written, wanted, tags)
    try:
        return generated_reader(written, wanted, None, plain, tags)
    except NotGenerated:
        return plain


def _typed_writer(type_: Any, schema: Any, head: bytes, plain: Write) -> Write:
    """Return a function that writes values of a type; its objects are read directly if no value has to be converted."""
    to_builtins = msgspec.to_builtins

    def converted(value: Any) -> bytes:
        return plain(to_builtins(value, builtin_types=_KEPT))

    try:
        return generated_writer(schema, struct_of(type_, schema), head, converted, Tags())
    except NotGenerated:
        return converted


def _typed(type_: Any, written: Any, wanted: Any, read: Read) -> Read:
    """Return a function that reads values of a type; its objects are made directly if no value has to be converted."""
    convert = converter(type_)

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
