"""Finds out whether values of an Avro schema become objects of a msgspec struct without conversion."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from riverrun.schemas.avro.reading import Made, NotGenerated, Part, definition_of, definitions, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KINDS: dict[str, type] = {
    "boolean": inspect.BoolType,
    "bytes": inspect.BytesType,
    "double": inspect.FloatType,
    "float": inspect.FloatType,
    "int": inspect.IntType,
    "long": inspect.IntType,
    "null": inspect.NoneType,
    "string": inspect.StrType,
}
_LOGICAL_KINDS: dict[str, type] = {
    "int-date": inspect.DateType,
    "long-timestamp-micros": inspect.DateTimeType,
    "long-timestamp-millis": inspect.DateTimeType,
}


def struct_of(type_: Any, schema: Any) -> Made | None:
    """Return how the records in values of a schema are made, if a type takes the values without conversion.

    Args:
        type_: Type of the values.
        schema: Their schema, as the library parses it.

    Raises:
        NotGenerated: If values have to be converted or checked.
    """
    return _Fitting(definitions(schema), []).fit((inspect.type_info(type_),), schema)


class _Fitting:
    """A comparison of types with schemas."""

    def __init__(self, defined: Mapping[str, Any], open_: list[type]) -> None:
        self._defined = defined
        self._open = open_

    def fit(self, kinds: Sequence[Any], schema: Any) -> Made | None:
        """Return how records are made in a value that has one of these types."""
        kinds = [each for kind in kinds for each in (kind.types if isinstance(kind, inspect.UnionType) else (kind,))]
        schema = definition_of(schema, self._defined)
        if isinstance(schema, list):
            found = [made for branch in schema if (made := self.fit(kinds, branch)) is not None]
            if len(found) > 1:
                message = "several records are in a union"
                raise NotGenerated(message)
            return found[0] if found else None
        kind = kind_of(schema)
        if kind == "record":
            return self._struct(_only(kinds, inspect.StructType), schema)
        if kind == "array":
            return self.fit((_only(kinds, inspect.ListType).item_type,), schema["items"])
        if kind == "map":
            found_kind = _only(kinds, inspect.DictType)
            _only((found_kind.key_type,), inspect.StrType)
            return self.fit((found_kind.value_type,), schema["values"])
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        _only(kinds, _KINDS.get(kind) if logical is None else _LOGICAL_KINDS.get(f"{kind}-{logical}"))
        return None

    def _struct(self, kind: inspect.StructType, schema: Any) -> Made:
        cls = kind.cls
        if kind.tag is not None or kind.array_like or kind.forbid_unknown_fields or hasattr(cls, "__post_init__"):
            message = f"{cls.__name__} has rules of its own"
            raise NotGenerated(message)
        if cls in self._open:
            message = f"{cls.__name__} contains itself"
            raise NotGenerated(message)
        self._open.append(cls)
        fields = {each["name"]: each for each in schema["fields"]}
        parts: dict[str, Part] = {}
        by_place = True
        arguments = signature(cls).parameters
        for own, in_class in zip(kind.fields, msgspec.structs.fields(cls), strict=True):
            if own.encode_name in fields:
                made = self.fit((own.type,), fields[own.encode_name]["type"])
                by_place = by_place and arguments[own.name].kind is Parameter.POSITIONAL_OR_KEYWORD
                parts[own.encode_name] = Part(None if by_place else own.name, made, in_class.type)
            elif own.required:
                message = f"the schema has no field {own.encode_name}"
                raise NotGenerated(message)
            else:
                by_place = False
        self._open.pop()
        return Made(cls, parts)


def _only(kinds: Sequence[Any], wanted: type | None) -> Any:
    """Return the type of a kind among several, if it has no constraints.

    Raises:
        NotGenerated: If there is none.
    """
    plain = [each for each in kinds if type(each) is wanted and not _is_constrained(each)]
    if len(plain) != 1:
        message = f"values would be converted to {kinds}"
        raise NotGenerated(message)
    return plain[0]


def _is_constrained(kind: Any) -> bool:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
    return any(getattr(kind, name, None) is not None for name in names)
