"""SQL's types for JSON Schemas, by the rules of Connect's `JsonSchemaData`."""

from __future__ import annotations

import json
from typing import Any

from riverrun.sql.columns.schema_types.unsupported import UnsupportedFieldError
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

_CONNECT = "org.apache.kafka.connect.data."
_TIMES: dict[str, SqlType] = {
    f"{_CONNECT}Date": Primitive.DATE,
    f"{_CONNECT}Time": Primitive.TIME,
    f"{_CONNECT}Timestamp": Primitive.TIMESTAMP,
}
_SMALL = {"int8", "int16", "int32"}
_DIGITS = "64"
_PARTS = ("oneOf", "anyOf", "allOf")


def json_schema_type(text: str) -> SqlType:
    """Return the type of a whole schema.

    Raises:
        UnsupportedFieldError: If SQL has no type for a part of it.
    """
    whole = json.loads(text)
    return _of(whole, whole, (), ())


def _of(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    if not isinstance(schema, dict):
        raise UnsupportedFieldError(path, "any value is allowed")
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference in around:
            raise UnsupportedFieldError(path, f"{reference} contains itself")
        return _of(_pointed(reference, whole, path), whole, path, (*around, reference))
    for part in _PARTS:
        if part in schema:
            return _only(schema[part], whole, path, around)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _only([{**schema, "type": each} for each in kind], whole, path, around)
    if kind == "array":
        return _array(schema, whole, path, around)
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, whole, path, around)
    return _single(schema, kind, path)


def _pointed(reference: str, whole: Any, path: tuple[str, ...]) -> Any:
    """Return the part of a schema that a reference points to."""
    found = whole
    for name in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        if not reference.startswith("#") or not isinstance(found, dict) or name not in found:
            raise UnsupportedFieldError(path, f"{reference} is not in the schema")
        found = found[name]
    return found


def _only(schemas: list[Any], whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    """Return the type of the only schema besides null."""
    others = [each for each in schemas if not (isinstance(each, dict) and each.get("type") == "null")]
    if len(others) != 1:
        raise UnsupportedFieldError(path, "a choice of several types has no type in SQL")
    return _of(others[0], whole, path, around)


def _array(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    items = schema.get("items")
    if schema.get("connect.type") == "map":
        raise UnsupportedFieldError(path, "maps with other keys than texts have no type in SQL")
    return Array(_of(items, whole, (*path, "items"), around))


def _object(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    if schema.get("connect.type") == "map" or (not properties and isinstance(others, dict)):
        return Map(Primitive.STRING, _of(others, whole, (*path, "additionalProperties"), around))
    if not properties:
        raise UnsupportedFieldError(path, "an object without properties has no type in SQL")
    ordered = sorted(properties.items(), key=_place)
    return Struct(tuple((name, _of(each, whole, (*path, name), around)) for name, each in ordered))


def _place(named: tuple[str, Any]) -> int:
    schema = named[1]
    return int(schema.get("connect.index", 0)) if isinstance(schema, dict) else 0


def _single(schema: Any, kind: Any, path: tuple[str, ...]) -> SqlType:
    title, connect = schema.get("title"), schema.get("connect.type")
    if title == f"{_CONNECT}Decimal":
        parameters = schema.get("connect.parameters") or {}
        digits, scale = (parameters.get(name) for name in ("connect.decimal.precision", "scale"))
        return Decimal(int(digits or _DIGITS), int(scale or 0))
    if title in _TIMES:
        return _TIMES[title]
    if kind == "string" or (kind is None and "enum" in schema):
        return Primitive.BYTES if connect == "bytes" else Primitive.STRING
    if kind == "integer":
        return Primitive.INTEGER if connect in _SMALL else Primitive.BIGINT
    found: dict[Any, SqlType] = {"boolean": Primitive.BOOLEAN, "number": Primitive.DOUBLE}
    if kind not in found:
        raise UnsupportedFieldError(path, "any value is allowed" if kind is None else f"it is always {kind}")
    return found[kind]
