"""JSON with a JSON Schema in the registry: plain values checked against the schema, or any type that msgspec supports."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Union, overload

import msgspec

from riverrun.decoders import json_decoder
from riverrun.errors import ConfigError, SchemaError
from riverrun.extras import require_extra
from riverrun.schemas.framed import HEAD_BYTES, Payload, Texts, framed
from riverrun.schemas.schema_text import Reference, check_depth, client_schema, is_same_json, json_text
from riverrun.serde.serdes import JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace

T = TypeVar("T")

# Called with types that are known at run time only, which type checkers do not expect.
_typed_dict: Any = TypedDict
_PLAIN: dict[Any, Any] = {"boolean": bool, "integer": int, "null": None, "number": float, "string": str}


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, titled with its name, with closed objects.

    >>> schema_of(list[int])
    {'title': 'list[int]', 'type': 'array', 'items': {'type': 'integer'}}
    """
    try:
        (top,), parts = msgspec.json.schema_components([type_], ref_template="#/definitions/{name}")
    except TypeError as error:
        raise ConfigError(f"{type_!r} has no JSON Schema: {error}", hint="Pass a schema: schema=.") from error
    for part in parts.values():
        if part.get("type") == "object" and "properties" in part:
            # Closed, so that registries accept further properties as a compatible change.
            part.setdefault("additionalProperties", False)
    name = top.get("$ref", "").rpartition("/")[2]
    # A type that does not contain itself needs no definition.
    if name and f'"{top["$ref"]}"' not in json.dumps(parts):
        top = parts.pop(name)
    title = name or (type_.__name__ if isinstance(type_, type) and not hasattr(type_, "__args__") else str(type_))
    found = {"title": title, **top}
    return {**found, "definitions": parts} if parts else found


def type_of(schema: Any) -> Any:
    """Return the Python type of a schema's values; `Any` where it cannot be expressed."""
    if not isinstance(schema, dict):
        return Any
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(type_of({**schema, "type": each}) for each in kind)]  # noqa: UP007 - made of values
    if "oneOf" in schema or "anyOf" in schema:
        return Union[tuple(map(type_of, schema.get("oneOf") or schema["anyOf"]))]  # noqa: UP007
    if kind == "array":
        return list[type_of(schema.get("items"))]  # type: ignore[misc]
    if kind == "object" and schema.get("properties"):
        fields = {name: type_of(each) for name, each in schema["properties"].items()}
        found = _typed_dict(str(schema.get("title", "Object")), fields, total=False)
        # As Python 3.15 names it.
        found.__closed__ = schema.get("additionalProperties") is False and "patternProperties" not in schema
        return found
    return _PLAIN.get(kind, Any)


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# References that may be followed for any value, and further ones per byte: a few schemas can refer to each other a billion
# times, however short the value is.
_FREE_REFERENCES, _REFERENCES_PER_BYTE = 10_000, 20
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\.", re.DOTALL)


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
    return framed(made_of.name, made_of, settings, remake, value_type, is_same=is_same_json, texts=made_of.texts)


def _again(
    type_: type[Any] | None, text: str | None, references: tuple[Reference, ...], settings: Mapping[str, Any]
) -> Serde[Any]:
    made: Serde[Any] = JsonSchema(type_, schema=text, references=references, config=settings)
    return made


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The parts of a serde of JSON with a schema.

    Args:
        type_: None for plain values.
        text: The schema; None for the writer's.
    """

    type_: type[Any] | None
    text: str | None
    references: tuple[Reference, ...] = ()

    @property
    def name(self) -> str:
        return "json_schema" if self.text is None else f"json_schema[{json.loads(self.text).get('title', 'object')}]"

    @property
    def form(self) -> str | None:
        """Return None: schemas are fetched in the form in which they were registered."""
        return None

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        """Return the schema; the schemas that it references are already registered."""
        return client_schema(self.text, "JSON", self.references)

    def record_name(self, schema: Any) -> str | None:
        title = json.loads(schema.schema_str).get("title")
        return None if title is None else str(title)

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        encode = JSON.serialize
        if self.type_ is not None:
            return lambda value: head + encode(value)
        check = _checker(schema, registry, is_own=schema.schema_str == self.text)

        def write(value: Any) -> bytes:
            data = encode(value)
            check(value, len(data))
            return head + data

        return write

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads values written with a schema."""
        payload = self.payload
        if payload is not None:
            decode = payload.read
            return lambda data: decode(data[HEAD_BYTES:])
        check, plain = _checker(schema, registry, is_own=schema.schema_str == self.text), msgspec.json.decode

        def read(data: bytes) -> Any:
            value = plain(data[HEAD_BYTES:])
            check(value, len(data))
            return value

        return read

    @property
    def payload(self) -> Payload | None:
        """Return the decoder of the type; None without one, as values are checked against their schema."""
        return None if self.type_ is None else Payload(json_decoder(self.type_).decode, lambda _: HEAD_BYTES)

    def texts(self, registry: RegistryClient) -> Texts:  # noqa: ARG002 - JSON is text already
        """Return how values are shown to people: they are JSON."""
        return Texts(_same, json_decoder(Any if self.type_ is None else self.type_).decode)


def _same(value: Any) -> Any:
    return value


def _checker(schema: Any, registry: RegistryClient, *, is_own: bool) -> Callable[[Any, int], None]:
    """Return a function that raises if a value does not fit a schema; its arguments are the value and its size in bytes."""
    # Schemas of writers (`is_own` is False) are foreign: what they make the validator do must be bounded.
    from jsonschema.validators import extend, validator_for  # noqa: PLC0415 - of an extra
    from referencing import Registry as Known  # noqa: PLC0415
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415

    own = _loaded(schema.schema_str)
    others = {name: _loaded(each) for name, each in _named(schema, registry).items()}
    base, limits = validator_for(own), _Limits()
    counted = {name: limits.counting(base.VALIDATORS[name]) for name in _REFERENCES if name in base.VALIDATORS}
    patterns = _Patterns.of([own, *others.values()], is_own=is_own)
    bounded = extend(base, {**counted, **patterns.keywords(base.VALIDATORS), "uniqueItems": _unique})
    resources = ((name, DRAFT7.create_resource(_of_one_dialect(each))) for name, each in others.items())
    validator = bounded(_of_one_dialect(own), registry=Known().with_resources(resources))

    def check(value: Any, size: int) -> None:
        limits.left = _FREE_REFERENCES + _REFERENCES_PER_BYTE * size
        try:
            error = next(validator.iter_errors(value), None)
        except RecursionError as deep:
            message = "the value, or its schema, is nested too deeply"
            raise ValueError(message) from deep
        if error is not None:
            raise ValueError(f"{error.message}, at {error.json_path}")

    return check


def _loaded(text: str) -> Any:
    try:
        found = json.loads(text)
        check_depth(found)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"A JSON Schema cannot be read: {error}") from error
    if not isinstance(found, dict | bool):
        raise SchemaError(f"A JSON Schema is an object, true or false, not of class {type(found).__name__}")
    return found


def _of_one_dialect(schema: Any) -> Any:
    """Return a schema without the dialects of its parts."""
    # The validator would check a part with another dialect by that dialect's own keywords, which have no bounds.
    if isinstance(schema, list):
        return [_of_one_dialect(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _of_one_dialect(each)
        for name, each in schema.items()
        if not (name == "$schema" and isinstance(each, str))
    }


class _Limits:
    """Bounds the references that are followed for a value."""

    left = 0

    def counting(self, keyword: Any) -> Any:
        """Return a keyword's function that counts its calls."""

        def counted(validator: Any, reference: Any, instance: Any, schema: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise ValueError("the schema refers to others too often for the size of the value")
            return keyword(validator, reference, instance, schema)

        return counted


@dataclass(frozen=True, slots=True)
class _Patterns:
    """The regular expressions of schemas, compiled."""

    searches: Mapping[str, Callable[[str], Any]]

    @classmethod
    def of(cls, schemas: Sequence[Any], *, is_own: bool) -> _Patterns:
        """Compile the patterns of schemas, on RE2 if it supports them."""
        waiting, found = list(schemas), dict[str, Any]()
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                of_names = each.get("patternProperties")
                if "unevaluatedProperties" in each and of_names and not is_own:
                    message = "A schema has both patternProperties and unevaluatedProperties, which take unbounded time"
                    raise SchemaError(message)
                texts = [each.get("pattern"), *(of_names if isinstance(of_names, dict) else ())]
                found |= {text: _search(text, is_own=is_own) for text in texts if isinstance(text, str)}
            waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        return cls(found)

    def keywords(self, known: Mapping[str, Any]) -> dict[str, Any]:  # noqa: C901 - three small functions
        """Return the functions of keywords with patterns; none if there are no patterns."""
        if not self.searches:
            return {}
        from jsonschema import ValidationError  # noqa: PLC0415 - of an extra

        searches = self.searches

        def pattern(validator: Any, text: Any, instance: Any, _schema: Any) -> Any:
            if validator.is_type(instance, "string") and not searches[text](instance):
                yield ValidationError(f"{instance!r} does not match {text!r}")

        def of_names(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Any:
            for text, part in patterns.items() if validator.is_type(instance, "object") else ():
                for name, each in instance.items():
                    if searches[text](name):
                        yield from validator.descend(each, part, path=name, schema_path=text)

        def additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Any:
            patterns = schema.get("patternProperties", ())
            if not validator.is_type(instance, "object") or not patterns:
                yield from known["additionalProperties"](validator, allowed, instance, schema)
                return
            named = schema.get("properties", {})
            for name in instance:
                if name not in named and not any(searches[text](name) for text in patterns):
                    if allowed is False:
                        yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
                    elif isinstance(allowed, dict):
                        yield from validator.descend(instance[name], allowed, path=name)

        return {"pattern": pattern, "patternProperties": of_names, "additionalProperties": additional}


def _search(pattern: str, *, is_own: bool) -> Callable[[str], Any]:
    import re2  # noqa: PLC0415 - of an extra

    options = re2.Options()
    options.log_errors = False
    # RE2 writes \uXXXX as \x{XXXX}.
    escaped = _ESCAPE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern)
    try:
        linear: Callable[[str], Any] = re2.compile(escaped, options).search
    except re2.error as error:
        why = str(error)
    else:
        return linear
    try:
        # The topology's own patterns are trusted: Python's engine may backtrack, without a limit of time.
        if is_own:
            return re.compile(pattern).search
    except re.error as error:
        why = str(error)
    message = f"The pattern {pattern[:100]!r} of a JSON Schema is refused: {why}"
    raise SchemaError(message, hint="Patterns of writers' schemas run on RE2, which has no look-around.")


def _unique(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - of an extra

    # By hashes: for items that cannot be sorted, the library compares each one with all others.
    if wanted and validator.is_type(instance, "array") and len({*map(_comparable, instance)}) < len(instance):
        yield ValidationError("it has an item twice")


def _comparable(value: Any) -> Any:
    """Return a value that equals another one where their JSON does: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return "object", frozenset((name, _comparable(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(_comparable, value))
    return isinstance(value, bool), value


def _named(schema: Any, registry: RegistryClient) -> dict[str, str]:
    """Return the schemas that a schema references, directly or indirectly, as text by name."""
    found: dict[str, str] = {}
    for reference in schema.references or ():
        other = registry.version(reference.subject, reference.version).schema
        found |= _named(other, registry)
        found[reference.name] = other.schema_str
    return found
