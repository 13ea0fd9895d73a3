"""Converts between types of Python and Avro's schemas."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Annotated, Any, TypedDict, Union, get_origin, is_typeddict

import msgspec
from msgspec import inspect

from riverrun.errors import ConfigError

_PLAIN: dict[type, Any] = {
    inspect.BoolType: "boolean",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.FloatType: "double",
    inspect.IntType: "long",
    inspect.NoneType: "null",
    inspect.StrType: "string",
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
}
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_OF_AVRO: dict[str, Any] = {
    "boolean": bool,
    "bytes": bytes,
    "double": float,
    "enum": str,
    "fixed": bytes,
    "float": float,
    "int": int,
    "long": int,
    "null": None,
    "string": str,
}
_LOGICAL: dict[str, Any] = {
    "date": dt.date,
    "decimal": decimal.Decimal,
    "local-timestamp-micros": dt.datetime,
    "local-timestamp-millis": dt.datetime,
    "time-micros": dt.time,
    "time-millis": dt.time,
    "timestamp-micros": dt.datetime,
    "timestamp-millis": dt.datetime,
    "uuid": uuid.UUID,
}
_TOP = {"int": Annotated[int, 32], "float": Annotated[float, 32]}
"""Numbers of fewer than 64 bits, where they are the whole value."""
_typed_dict: Any = TypedDict
"""Called with types that are known at run time only, which type checkers do not expect."""
_HINT = "Pass a schema: schema=."


def schema_of(type_: Any) -> Any:
    """Return the Avro schema of a type: fields in their order, with defaults where Avro can express them.

    >>> schema_of(list[int | None])
    {'type': 'array', 'items': ['long', 'null']}

    Args:
        type_: A type that msgspec can inspect.

    Raises:
        ConfigError: If Avro has no such type.
    """
    try:
        found = inspect.type_info(type_)
    except TypeError as error:
        message = f"{type_!r} has no Avro schema: {error}"
        raise ConfigError(message, hint=_HINT) from error
    return _avro(found, {})


def type_of(schema: Any) -> Any:
    """Return the Python type of a schema's values; `Any` where it cannot be expressed."""
    if isinstance(schema, str) and schema in _TOP:
        return _TOP[schema]
    return _python(schema, {})


def _avro(found: Any, named: dict[str, Any]) -> Any:
    if isinstance(found, inspect.Metadata):
        return _avro(found.type, named)
    if isinstance(found, inspect.UnionType):
        return [_avro(each, named) for each in found.types]
    if isinstance(found, inspect.CollectionType):
        return {"type": "array", "items": _avro(found.item_type, named)}
    if isinstance(found, inspect.DictType) and isinstance(found.key_type, inspect.StrType):
        return {"type": "map", "values": _avro(found.value_type, named)}
    if isinstance(found, inspect.EnumType | inspect.LiteralType):
        return _of_choices(found, named)
    if isinstance(found, _RECORDS):
        return _record(found, named)
    if type(found) not in _PLAIN:
        message = f"Avro has no type for {found!r}"
        raise ConfigError(message, hint=_HINT)
    return _PLAIN[type(found)]


def _of_choices(found: Any, named: dict[str, Any]) -> Any:
    """Return an Avro enum for text choices with a name that are legal symbols; otherwise their type."""
    is_enum = isinstance(found, inspect.EnumType)
    values = [member.value for member in found.cls] if is_enum else list(found.values)
    if all(isinstance(value, int) for value in values):
        return "long"
    if not all(isinstance(value, str) for value in values):
        message = f"Avro has no type for {found!r}"
        raise ConfigError(message, hint=_HINT)
    if not is_enum or not all(value.isidentifier() and value.isascii() for value in values):
        return "string"
    name = found.cls.__name__
    if name in named:
        return _again(found.cls, named[name])
    named[name] = found.cls
    return {"type": "enum", "name": name, "symbols": values}


def _again(cls: type, named: type) -> str:
    """Return the name of a class whose schema was made before.

    Raises:
        ConfigError: If another class has its name.
    """
    if cls is not named:
        message = f"{cls!r} and {named!r} would have one name in the Avro schema"
        raise ConfigError(message, hint=_HINT)
    return cls.__name__


def _record(found: Any, named: dict[str, Any]) -> Any:
    name = found.cls.__name__
    if name in named:
        return _again(found.cls, named[name])
    named[name] = found.cls
    return {"type": "record", "name": name, "fields": [_field(field, named) for field in found.fields]}


def _field(field: Any, named: dict[str, Any]) -> dict[str, Any]:
    kind = _avro(field.type, named)
    default = field.default
    if field.default_factory in (list, dict):
        default = field.default_factory()
    if not field.required and default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        default = None  # an optional key of a TypedDict
        kind = ["null", kind] if not isinstance(kind, list) else ["null", *(each for each in kind if each != "null")]
    if default is None or not isinstance(default, bool | int | float | str | list | dict):
        if default is not None:  # no default, or one that JSON cannot express
            return {"name": field.encode_name, "type": kind}
        kind = ["null", *(each for each in kind if each != "null")] if isinstance(kind, list) else kind
    elif isinstance(kind, list):  # a union's default must have its first type
        kind = [*(each for each in kind if each != "null"), "null"] if "null" in kind else kind
    return {"name": field.encode_name, "type": kind, "default": default}


def _python(schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _union([_python(each, named) for each in schema])
    if isinstance(schema, str):
        return _OF_AVRO.get(schema, named.get(schema, Any))
    kind = schema.get("type")
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if kind == "array":
        return list[_python(schema["items"], named)]  # type: ignore[misc]
    if kind == "map":
        return dict[str, _python(schema["values"], named)]  # type: ignore[misc]
    if kind != "record":
        made = _python(kind, named) if isinstance(kind, dict | list) else _OF_AVRO.get(kind, Any)
        named |= {schema["name"]: made} if "name" in schema else {}
        return made
    fields = {field["name"]: _python(field["type"], named) for field in schema["fields"]}
    named[schema["name"]] = _typed_dict(schema["name"].rpartition(".")[2], fields)
    return named[schema["name"]]


def _union(types: list[Any]) -> Any:
    """Return the union of types; `Any` if values name their branch, as those of two types with one class do."""
    classes = [get_origin(each) or (dict if is_typeddict(each) else each) for each in types]
    found: Any = Union[tuple(types)]  # noqa: UP007 - made of values
    try:
        inspect.type_info(found)
    except TypeError:
        return Any
    return found if len(set(classes)) == len(classes) else Any
