"""Matches columns with the fields of Avro records, for generated functions that make rows without dicts in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.schemas.avro.lines import NotGenerated
from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.reading import Made, Part
from riverrun.sql.formats.avro.values import of_avro
from riverrun.sql.types import Array, Columns, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WHOLE = frozenset({"int", "long"})
_SAME: dict[SqlType, frozenset[str]] = {
    Primitive.BOOLEAN: frozenset({"boolean"}),
    Primitive.INTEGER: frozenset({"int"}),
    Primitive.BIGINT: _WHOLE,
    Primitive.DOUBLE: frozenset({"float", "double"}),
    Primitive.STRING: frozenset({"string", "enum"}),
    Primitive.BYTES: frozenset({"bytes", "fixed"}),
    Primitive.DATE: frozenset({"int"}),
    Primitive.TIMESTAMP: _WHOLE,
}
"""Types of Avro whose values need no conversion, nor a look at their range."""


def row_of(columns: Columns, schema: Any) -> Made:
    """Return how rows are made of records.

    Args:
        columns: Names and types.
        schema: Of the records, as the library parses it.

    Raises:
        NotGenerated: If it is not the schema of a record, or two columns have one field.
    """
    if not isinstance(schema, dict) or kind_of(schema) != "record":
        message = "a row is a record"
        raise NotGenerated(message)
    return Made(tuple, _Fitting(definitions(schema)).parts(columns, schema))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A comparison of columns with a schema.

    Args:
        defined: Its named schemas.
    """

    defined: Mapping[str, Any]

    def parts(self, columns: Columns, schema: Any) -> dict[str, Part]:
        """Return columns by the names of their fields, and those without a field by their own."""
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        alike = {name.upper(): name for name in fields}
        found: dict[str, Part] = {}
        for column, type_ in columns:
            name = column if column in fields else alike.get(column.upper(), column)
            if name in found:
                message = f"two columns have the field {name}"
                raise NotGenerated(message)
            made, convert = self._fit(type_, fields[name]) if name in fields else (None, None)
            found[name] = Part(column, made, type_, convert)
        return found

    def _fit(self, type_: SqlType, schema: Any) -> tuple[Made | None, Callable[[Any], Any] | None]:
        """Return how the records in a value are made, or else the function that converts the value, if one is needed."""
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            return self._fit(type_, others[0]) if len(others) == 1 else (None, of_avro(type_))
        kind = kind_of(schema)
        match type_:
            case Struct() if kind == "record":
                return Made(dict, self.parts(type_.fields, schema)), None
            case Array() if kind == "array":
                made, convert = self._fit(type_.item, schema["items"])
            case Map(key=Primitive.STRING) if kind == "map":
                made, convert = self._fit(type_.value, schema["values"])
            case _:
                is_logical = isinstance(schema, dict) and "logicalType" in schema
                made, convert = None, None if kind in _SAME.get(type_, ()) and not is_logical else of_avro(type_)
        return (made, None) if convert is None else (None, of_avro(type_))
