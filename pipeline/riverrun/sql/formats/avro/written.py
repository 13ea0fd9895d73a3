"""Writes rows with an Avro schema of a registry, which statements name by its id.

Its fields may be more than the columns, and required. A NULL of a field with a default is the default, as in Connect.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from riverrun.sql.columns.schema_types.avro_types import referenced
from riverrun.sql.errors import SqlError
from riverrun.sql.types import Array, Columns, Map, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.sql.columns.written_schemas import WrittenSchema


def check_written(text: str, columns: Columns) -> None:
    """Make sure that a schema needs no fields besides columns.

    Raises:
        SqlError: If it has a required field that is no column.
    """
    schema, names = json.loads(text), {name for name, _ in columns}
    for field in schema["fields"] if isinstance(schema, dict) and schema.get("type") == "record" else ():
        if field["name"] not in names and "default" not in field and not _is_nullable(field["type"]):
            message = f"Missing default value for required Avro field: [{field['name']}]. The query has no such column"
            raise SqlError(message, hint="Add the column, or name a schema in which the field has a default.")


def row_converter(schema: WrittenSchema, columns: Columns) -> Callable[[Any], Any]:
    """Return the function that converts rows to the records of a schema."""
    convert = _record(_schemas(schema), Struct(columns))
    names = [name for name, _ in columns]
    return lambda row: convert(dict(zip(names, row, strict=True)))


def value_converter(schema: WrittenSchema, type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts values of one column to those of a schema."""
    return _converter(_schemas(schema), type_)


def _schemas(schema: WrittenSchema) -> _Schemas:
    named = {name.rpartition(".")[2]: each for name, each in referenced(schema.references).items()}
    return _Schemas(json.loads(schema.text), named)


class _Schemas:
    """A schema, and the schemas with names that are in it."""

    def __init__(self, schema: Any, named: dict[str, Any]) -> None:
        self.named = named
        self.schema = self._plain(schema)

    def part(self, schema: Any) -> _Schemas:
        """Return a part of the schema."""
        return _Schemas(schema, self.named)

    def _plain(self, schema: Any) -> Any:
        """Return the schema besides null in a union, and the schema that a name stands for."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            return self._plain(others[0]) if len(others) == 1 else schema
        if isinstance(schema, str):
            return self.named.get(schema.rpartition(".")[2], schema)
        if "name" in schema:
            self.named[str(schema["name"]).rpartition(".")[2]] = schema
        return self._plain(schema["type"]) if isinstance(schema["type"], dict | list) else schema


def _is_nullable(schema: Any) -> bool:
    return isinstance(schema, list) and "null" in schema


def _converter(schemas: _Schemas, type_: SqlType) -> Callable[[Any], Any]:
    schema = schemas.schema
    match type_:
        case Array():
            item = _converter(schemas.part(schema["items"]), type_.item)
            return lambda value: None if value is None else [item(each) for each in value]
        case Map():
            return _map(schemas, type_)
        case Struct():
            return _record(schemas, type_)
    return lambda value: value


def _map(schemas: _Schemas, type_: Map) -> Callable[[Any], Any]:
    schema = schemas.schema
    if schema["type"] == "map":
        part = _converter(schemas.part(schema["values"]), type_.value)
        return lambda value: None if value is None else {name: part(each) for name, each in value.items()}
    entry = schemas.part(schema["items"])
    fields = {each["name"]: each["type"] for each in entry.schema["fields"]}
    part = _converter(entry.part(fields["value"]), type_.value)
    return lambda value: None if value is None else [{"key": name, "value": part(each)} for name, each in value.items()]


def _record(schemas: _Schemas, type_: Struct) -> Callable[[Any], Any]:
    parts = []
    for field in schemas.schema["fields"]:
        known = type_.field(field["name"])
        if known is not None:
            parts.append((field["name"], _converter(schemas.part(field["type"]), known), "default" in field))

    def convert(value: Any) -> Any:
        if value is None:
            return None
        made = {name: (part(value.get(name)), has_default) for name, part, has_default in parts}
        return {name: each for name, (each, has_default) in made.items() if each is not None or not has_default}

    return convert
