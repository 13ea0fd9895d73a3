"""Parses Avro schemas together with the schemas that they reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.schemas.schema_text import check_depth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.schemas.registry import RegistryClient

NAMED = frozenset({"enum", "fixed", "record"})
# Python writes no longer numbers as text.
MOST_DIGITS = 4_300

# Few fields without bytes cost nothing; only what exceeds them counts against the limit of a value.
_FREE_FIELDS = 8


def _same(schema: Any) -> Any:
    return schema


def parsed(schema: Any, registry: RegistryClient, changed: Callable[[Any], Any] = _same) -> Any:
    """Return a schema in the library's form, with the schemas that it references; `changed` is applied to the JSON of each."""
    return parsed_text(schema.schema_str, lambda: _named(schema, registry, changed), changed)


def parsed_text(text: str, named: Callable[[], dict[str, Any]] = dict, changed: Callable[[Any], Any] = _same) -> Any:
    """Return a schema of JSON in the library's form."""
    from confluent_kafka.schema_registry.avro import parse_schema_with_repo  # noqa: PLC0415 - of an extra
    from fastavro.repository import SchemaRepositoryError  # noqa: PLC0415
    from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415

    hint: str | None = None
    why: Exception
    try:
        found = json.loads(text)
        check_depth(found)
        known = parse_schema_with_repo(json.dumps(changed(found)), named_schemas=named())
        _check(known)
    except (SchemaRepositoryError, UnknownType) as error:
        hint, why = "Pass the schemas that it refers to as references=.", error
    except RecursionError:
        why = ValueError("it is nested too deeply")
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as error:
        why = error
    else:
        return known
    message = f"This is not an Avro schema: {type(why).__name__}: {why}"
    raise ConfigError(message, hint=hint) from why


def is_same_schema(one: Any, other: Any, registry: RegistryClient) -> bool:
    """Return whether a registry has one id for two schemas: they differ at most in spaces, and in how names are written."""
    is_avro = {one.schema_type, other.schema_type} <= {None, "AVRO"}
    return is_avro and bool(parsed(one, registry) == parsed(other, registry))


def kind_of(schema: Any) -> str:
    """Return the type of a definition that is not a union: the name of a primitive or complex type."""
    return str(schema if isinstance(schema, str) else schema["type"])


def definition_of(schema: Any, defined: Mapping[str, Any]) -> Any:
    """Return the definition of a schema that may be a name, or has one as its type; None for None."""
    while True:
        if isinstance(schema, str):
            return defined.get(schema, schema)
        if (
            schema is None
            or isinstance(schema, list)
            or (isinstance(schema["type"], str) and schema["type"] not in defined)
        ):
            return schema
        schema = schema["type"]


def definitions(schema: Any) -> dict[str, Any]:
    """Return named schemas by full name; the library has completed the names."""
    own = {schema["name"]: schema} if isinstance(schema, dict) and schema["type"] in NAMED else {}
    return own | {name: made for each in _parts(schema) for name, made in definitions(each).items()}


def _parts(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return schema if isinstance(schema, list) else []
    parts = [each["type"] for each in schema.get("fields", ())]
    parts += [schema[part] for part in ("items", "values") if part in schema]
    return parts if isinstance(schema["type"], str) else [*parts, schema["type"]]


def smallest_of(schema: Any, defined: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return the smallest number of bytes of a schema's values; sizes of records are added to `known`."""
    schema = definition_of(schema, defined)
    if isinstance(schema, list):
        return 1
    kind = kind_of(schema)
    if kind == "fixed":
        return int(schema["size"])
    if kind != "record":
        return {"null": 0, "float": 4, "double": 8}.get(kind, 1)
    if schema["name"] not in known:
        # For a record that contains itself.
        known[schema["name"]] = 0
        known[schema["name"]] = sum(smallest_of(each["type"], defined, known) for each in schema["fields"])
    return known[schema["name"]]


def free_values(record: Any, defined: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return how many values a record has that take no bytes, itself among them, beyond the few that any may have."""
    free = sum(smallest_of(each["type"], defined, known) == 0 for each in record["fields"])
    return max(0, free - _FREE_FIELDS) + (smallest_of(record, defined, known) == 0)


def _check(known: Any) -> None:
    """Check what the library does not: sizes and precisions are numbers, and a union has each type once."""
    waiting = [known]
    while waiting:
        schema = waiting.pop()
        waiting += _parts(schema)
        if isinstance(schema, list):
            names = [str(_name(each)) for each in schema]
            if len(set(names)) < len(names) or any(isinstance(each, list) for each in schema):
                raise ValueError(f"a union has a type twice, or another union: {', '.join(names)}")
        elif isinstance(schema, dict):
            _check_numbers(schema)


def _name(schema: Any) -> Any:
    while isinstance(schema, dict):
        schema = schema["name"] if "name" in schema else schema["type"]
    return schema


def _check_numbers(schema: dict[str, Any]) -> None:
    if schema["type"] == "fixed":
        _check_number(schema, "size", 0, 2**31 - 1)
    if schema.get("logicalType") == "decimal":
        _check_number(schema, "precision", 1, MOST_DIGITS)
        _check_number({"scale": 0, **schema}, "scale", 0, schema["precision"])


def _check_number(schema: dict[str, Any], name: str, least: int, most: int) -> None:
    found = schema.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{name} is {found!r}, not a number from {least} to {most}")


def _named(schema: Any, registry: RegistryClient, changed: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the schemas that a schema references, directly or indirectly, by name."""
    found: dict[str, Any] = {}
    for reference in schema.references or ():
        other = registry.version(reference.subject, reference.version).schema
        found |= _named(other, registry, changed)
        each = json.loads(other.schema_str)
        check_depth(each)
        found[reference.name] = changed(each)
    return found
