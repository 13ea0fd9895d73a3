"""JSON with a JSON Schema in the registry: plain values checked against the schema, or any type that msgspec supports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from riverrun.decoders import json_decoder
from riverrun.extras import require_extra
from riverrun.schemas.framed import HEAD_BYTES, Payload, framed
from riverrun.schemas.json_types import schema_of, type_of
from riverrun.schemas.schema_text import client_schema, json_text
from riverrun.schemas.subjects import Reference
from riverrun.serde.json import JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import Registry
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace

T = TypeVar("T")


@overload
def JsonSchema(
    type_: type[T],
    *,
    schema: str | Mapping[str, Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[T]: ...


@overload
def JsonSchema(
    type_: None = None,
    *,
    schema: str | Mapping[str, Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]: ...


def JsonSchema(  # noqa: N802 - as JSON
    type_: type[Any] | None = None,
    *,
    schema: str | Mapping[str, Any] | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]:
    """Return a serde of JSON with a schema in a registry (`KafkaJsonSchemaSerde`).

    Writing and reading check values: against the type if there is one, else against the schema. Equal values have equal
    bytes.

    >>> class Flight(msgspec.Struct):
    ...     carrier: str
    ...     delay: int | None = None
    >>> JsonSchema(Flight).name
    'json_schema[Flight]'

    Args:
        type_: Type of the values: a `msgspec.Struct`, a dataclass, a TypedDict, or any other type that msgspec can decode. By
            default, objects are dicts.
        schema: The schema, as JSON text or as parsed JSON; derived from the type by default.
        references: Registered schemas that the schema uses: name (the `$ref`), subject and version of each.
        config: `auto.register.schemas`, `use.latest.version`, `normalize.schemas` and `subject.name.strategy`, where they
            differ from `[schema_registry]`.

    Raises:
        ConfigError: If the type has no JSON Schema, the schema is invalid, or a setting is unknown.
        MissingExtraError: If the extra `schemas` is not installed.
    """
    require_extra("schemas")
    text = json_text(schema_of(type_) if schema is None and type_ is not None else schema, "A JSON Schema")
    made_of = JsonFormat(type_, text, tuple(Reference(*each) for each in references))
    settings = dict(config or {})
    remake = (_again, (type_, text, made_of.references, settings))
    if type_ is not None:
        value_type: Any = type_
    else:
        value_type = Any if text is None else type_of(json.loads(text))
    return framed(made_of.name, made_of, settings, remake, value_type)


def _again(
    type_: type[Any] | None, text: str | None, references: tuple[Reference, ...], settings: Mapping[str, Any]
) -> Serde[Any]:
    made: Serde[Any] = JsonSchema(type_, schema=text, references=references, config=settings)
    return made


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The parts of a serde of JSON with a schema.

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
        return "json_schema" if self.text is None else f"json_schema[{json.loads(self.text).get('title', 'object')}]"

    @property
    def form(self) -> str | None:
        """Return None: schemas are fetched in the form in which they were registered."""
        return None

    def prepared(self, registry: Registry, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        """Return the schema; the schemas that it references are already registered."""
        return client_schema(self.text, "JSON", self.references)

    def record_name(self, schema: Any) -> str | None:
        """Return the title of the schema."""
        title = json.loads(schema.schema_str).get("title")
        return None if title is None else str(title)

    def writer(self, schema: Any, head: bytes, registry: Registry) -> Write:
        """Return the function that writes values."""
        encode = JSON.serialize
        if self.type_ is not None:
            return lambda value: head + encode(value)
        check = _checker(schema, registry)

        def write(value: Any) -> bytes:
            check(value)
            return head + encode(value)

        return write

    def reader(self, schema: Any, registry: Registry) -> Read:
        """Return the function that reads values written with a schema."""
        payload = self.payload
        if payload is not None:
            decode = payload.read
            return lambda data: decode(data[HEAD_BYTES:])
        check, plain = _checker(schema, registry), msgspec.json.decode

        def read(data: bytes) -> Any:
            value = plain(data[HEAD_BYTES:])
            check(value)
            return value

        return read

    @property
    def payload(self) -> Payload | None:
        """Return the decoder of the type; None without one, as values are checked against their schema."""
        return None if self.type_ is None else Payload(json_decoder(self.type_).decode, lambda _: HEAD_BYTES)


def _checker(schema: Any, registry: Registry) -> Callable[[Any], None]:
    """Return a function that raises if a value does not fit a schema."""
    from jsonschema.validators import validator_for  # noqa: PLC0415 - of an extra
    from referencing import Registry as Known  # noqa: PLC0415
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415

    own = json.loads(schema.schema_str)
    others = ((name, DRAFT7.create_resource(each)) for name, each in _named(schema, registry).items())
    validator = validator_for(own)(own, registry=Known().with_resources(others))

    def check(value: Any) -> None:
        error = next(validator.iter_errors(value), None)
        if error is not None:
            message = f"{error.message}, at {error.json_path}"
            raise ValueError(message)

    return check


def _named(schema: Any, registry: Registry) -> dict[str, Any]:
    """Return the schemas that a schema references, directly or indirectly, by name."""
    found: dict[str, Any] = {}
    for reference in schema.references or ():
        other = registry.version(reference.subject, reference.version).schema
        found |= _named(other, registry)
        found[reference.name] = json.loads(other.schema_str)
    return found
