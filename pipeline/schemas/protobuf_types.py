"""Converts messages of Protobuf to plain values, and their descriptors to types of Python."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_typed_dict: Any = TypedDict
"""Called with types that are known at run time only, which type checkers do not expect."""
_TIMESTAMP = "google.protobuf.Timestamp"
_JSON = frozenset(
    {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.Any"}
)
"""Messages that represent JSON."""


def plain(message: Any) -> dict[str, Any]:
    """Return a message as a dict of all its fields, with None for absent optional fields and names for enums.

    Args:
        message: A message; timestamps in it become datetimes in UTC.
    """
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields}


def filled(message: Any, value: Any) -> Any:
    """Fill a message with the fields of a dict.

    Args:
        message: An empty message.
        value: A dict as `plain` returns it; fields may be missing.

    Returns:
        The message.

    Raises:
        ValueError: If the dict has unknown fields, or values that do not fit.
    """
    from google.protobuf.json_format import ParseDict, ParseError  # noqa: PLC0415 - of an extra

    try:
        return ParseDict(msgspec.to_builtins(value, str_keys=True), message)
    except ParseError as error:
        raise ValueError(str(error)) from error


def type_of(descriptor: Any) -> Any:
    """Return the type of the values that `plain` returns for a message."""
    return _type(descriptor, ())


def _plain_field(message: Any, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value, of = getattr(message, field.name), _plain_of(field)
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        of = _plain_of(entry)
        return {str(key): of(value[key]) for key in value}
    return [of(each) for each in value] if _is_repeated(field) else of(value)


def _plain_of(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    if field.message_type is None:
        return _same
    if field.message_type.full_name == _TIMESTAMP:
        return _time
    return _json if field.message_type.full_name in _JSON else plain


def _same(value: Any) -> Any:
    return value


def _time(value: Any) -> dt.datetime:
    moment: dt.datetime = value.ToDatetime(dt.UTC)
    return moment


def _json(value: Any) -> Any:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - of an extra

    return MessageToDict(value)


def _type(descriptor: Any, within: tuple[str, ...]) -> Any:
    if descriptor.full_name in within:
        return Any  # the message contains itself
    within = (*within, descriptor.full_name)
    return _typed_dict(descriptor.name, {field.name: _field_type(field, within) for field in descriptor.fields})


def _field_type(field: Any, within: tuple[str, ...]) -> Any:
    if _is_map(field):
        return dict[str, _single(field.message_type.fields_by_name["value"], within)]  # type: ignore[misc]
    found = _single(field, within)
    if _is_repeated(field):
        return list[found]  # type: ignore[valid-type]
    return found | None if field.has_presence and found is not Any else found


def _single(field: Any, within: tuple[str, ...]) -> Any:
    if field.message_type is not None:
        name = field.message_type.full_name
        return dt.datetime if name == _TIMESTAMP else Any if name in _JSON else _type(field.message_type, within)
    if field.enum_type is not None:
        return str
    kinds = {field.CPPTYPE_BOOL: bool, field.CPPTYPE_DOUBLE: float, field.CPPTYPE_FLOAT: float}
    if field.cpp_type == field.CPPTYPE_STRING:
        return bytes if field.type == field.TYPE_BYTES else str
    return kinds.get(field.cpp_type, int)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    return _is_repeated(field) and field.message_type is not None and field.message_type.GetOptions().map_entry
