"""SQL's types for Avro schemas, by the rules of Connect's `AvroData`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from riverrun.sql.columns.schema_types.unsupported import UnsupportedFieldError
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.sql.columns.written_schemas import ReferencedSchema

_CONNECT = "org.apache.kafka.connect.data."
_SIMPLE: dict[str, SqlType] = {
    "boolean": Primitive.BOOLEAN,
    "int": Primitive.INTEGER,
    "long": Primitive.BIGINT,
    "float": Primitive.DOUBLE,
    "double": Primitive.DOUBLE,
    "string": Primitive.STRING,
    "bytes": Primitive.BYTES,
    "enum": Primitive.STRING,
    "fixed": Primitive.BYTES,
}
_TIMES: dict[tuple[str, str], SqlType] = {
    ("int", "date"): Primitive.DATE,
    ("int", "time-millis"): Primitive.TIME,
    ("long", "timestamp-millis"): Primitive.TIMESTAMP,
    ("int", f"{_CONNECT}Date"): Primitive.DATE,
    ("int", f"{_CONNECT}Time"): Primitive.TIME,
    ("long", f"{_CONNECT}Timestamp"): Primitive.TIMESTAMP,
}
"""Types of numbers by their logical type, or by the name that Connect gives to it."""
_DIGITS = 64
"""Connect's precision of decimals that say none."""


def avro_type(text: str, references: Iterable[ReferencedSchema] = ()) -> SqlType:
    """Return the type of a whole schema.

    Args:
        text: The schema.
        references: The schemas that it refers to.

    Raises:
        UnsupportedFieldError: If SQL has no type for a part of it.
    """
    return _Types(referenced(references)).of(json.loads(text), ())


def referenced(references: Iterable[ReferencedSchema]) -> dict[str, Any]:
    """Return the named schemas in references, and in their references, by full name."""
    found: dict[str, Any] = {}
    for each in references:
        found |= referenced(each.references)
        found |= _definitions(json.loads(each.text), "")
    return found


def _definitions(schema: Any, space: str) -> dict[str, Any]:
    """Return the named schemas in a schema, with their full names."""
    if isinstance(schema, list):
        return {name: made for each in schema for name, made in _definitions(each, space).items()}
    if not isinstance(schema, dict):
        return {}
    found: dict[str, Any] = {}
    if "name" in schema:
        name = _full_name(schema, space)
        found[name], space = {**schema, "name": name}, name.rpartition(".")[0]
    parts = [schema.get("type"), schema.get("items"), schema.get("values")]
    parts += [each["type"] for each in schema.get("fields", ())]
    return found | {name: made for each in parts for name, made in _definitions(each, space).items()}


class _Types:
    """Knows the named types of references, and those seen so far."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def of(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...] = (), space: str = "") -> SqlType:
        """Return the type of a schema at a path, within the records `around` it and their namespace."""
        if isinstance(schema, list):
            return self._union(schema, path, around, space)
        if isinstance(schema, str):
            return self._by_name(schema, path, around, space)
        if not isinstance(schema["type"], str):
            return self.of(schema["type"], path, around, space)
        if schema["type"] in {"record", "error"}:
            return self._record(schema, path, around, space)
        if schema["type"] == "array":
            return self._array(schema["items"], path, around, space)
        if schema["type"] == "map":
            return Map(Primitive.STRING, self.of(schema["values"], (*path, "values"), around, space))
        return self._single(schema, path, around, space)

    def _single(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        if "name" in schema:
            self._named[_full_name(schema, space)] = schema
        names, kind = (schema.get("logicalType"), schema.get("connect.name")), schema["type"]
        if "decimal" in names or f"{_CONNECT}Decimal" in names:
            return Decimal(int(schema.get("precision", _DIGITS)), int(schema.get("scale", 0)))
        found = next((_TIMES[kind, name] for name in names if (kind, name) in _TIMES), None)
        return found or self._by_name(kind, path, around, space)

    def _by_name(self, name: str, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._named.get(full, self._named.get(name))
        if found is None:
            what = "it is always null" if name == "null" else f"nothing is known of the type {name}"
            raise UnsupportedFieldError(path, what)
        return self.of(found, path, around, space)

    def _union(self, schemas: list[Any], path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        others = [each for each in schemas if each != "null"]
        if len(others) != 1:
            raise UnsupportedFieldError(path, "a union of several types has no type in SQL")
        return self.of(others[0], path, around, space)

    def _array(self, items: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        if isinstance(items, dict) and (
            items.get("connect.internal.type") == "MapEntry" or items.get("name") == "MapEntry"
        ):
            entry = self.of(items, (*path, "entries"), around, space)
            value = entry.field("value") if isinstance(entry, Struct) else None
            if value is not None:
                return Map(Primitive.STRING, value)
        return Array(self.of(items, (*path, "items"), around, space))

    def _record(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        name = _full_name(schema, space)
        if name in around:
            raise UnsupportedFieldError(path, f"record {name} contains itself")
        self._named[name] = schema
        within, inner = (*around, name), name.rpartition(".")[0]
        return Struct(
            tuple(
                (each["name"], self.of(each["type"], (*path, each["name"]), within, inner)) for each in schema["fields"]
            )
        )


def _full_name(schema: Any, space: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"
