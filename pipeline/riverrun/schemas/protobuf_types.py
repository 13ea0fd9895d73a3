"""Converts messages of Protobuf to plain values and back, and their descriptors to types of Python."""

from __future__ import annotations

import base64
import datetime as dt
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import msgspec

from riverrun.records import EPOCH, moment
from riverrun.serde.serdes import ODD_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Plain: TypeAlias = "Callable[[Any], Any]"
    Fill: TypeAlias = "Callable[[Any, Any], Any]"

# Called with types that are known at run time only, which type checkers do not expect.
_typed_dict: Any = TypedDict
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
# Messages that represent JSON.
_JSON = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
)
"""Messages of one value, which distinguish an absent value from 0."""
_KEPT = (bytes, dt.datetime, dt.timedelta)
UNKNOWN = "-unknown"
"""The key of a message's fields that its class does not know, as bytes. No field of Protobuf can have this name."""
_SECOND_NANOS = 1_000_000_000


def plain_of(descriptor: Any) -> Plain:
    """Return the function that converts a message to a plain value: a dict of all its fields.

    Absent fields with presence, such as those of a `oneof`, are None. Enums are names, timestamps datetimes in UTC or texts
    if they have nanoseconds, wrappers their values, structs JSON. Unknown fields are bytes, under `UNKNOWN`.
    """
    return _plain_message(descriptor, {})


def filler_of(descriptor: Any) -> Fill:
    """Return the function that fills an empty message with a value as `plain_of` returns it, and returns the message.

    Fields may be missing. The function raises ValueError for unknown fields, and for values that do not fit.
    """
    fill = _fill_message(descriptor, {})

    def filled(message: Any, value: Any) -> Any:
        try:
            fill(message, msgspec.to_builtins(value, str_keys=True, builtin_types=_KEPT))
        except TypeError as error:
            raise ValueError(str(error)) from error
        return message

    return filled


def reader_of_json(descriptor: Any) -> Plain:
    """Return the function that turns JSON, in which bytes are base64, into a value as `plain_of` returns it."""

    def read(value: Any) -> Any:
        return _changed(descriptor, _with_unknown(value), _of_json)

    return read


def typed_of(descriptor: Any) -> Plain:
    """Return the function that turns a value of `plain_of` into one of `type_of`: numbers of unknown enums become text."""

    def typed(value: Any) -> Any:
        return _changed(descriptor, value, _as_text)

    return typed


def type_of(descriptor: Any) -> Any:
    """Return the type of the values that `plain_of` produces."""
    return _type(descriptor, ())


# From messages


def _plain_message(descriptor: Any, known: dict[str, Plain]) -> Plain:
    name = descriptor.full_name
    if name in known:
        return known[name]
    unknown_in = _unknown_in()
    whole = attrgetter("value") if name in WRAPPERS else {_TIMESTAMP: _time}.get(name, _json if name in _JSON else None)
    if whole is not None:
        return _without_unknown(name, whole, unknown_in)
    fields: list[tuple[str, Plain]] = []
    # Extensions are known to the class, so they are not among its unknown fields.
    may_have_others = descriptor.is_extendable

    def plain(message: Any) -> dict[str, Any]:
        found = {name: get(message) for name, get in fields}
        if may_have_others or len(unknown_in(message)):
            others = _others(message, descriptor)
            if others:
                found[UNKNOWN] = others
        return found

    # Before the fields, as a message may contain itself.
    known[name] = plain
    fields += [(field.name, _getter(field, known)) for field in descriptor.fields]
    return plain


def _unknown_in() -> Any:
    from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415 - of an extra

    return UnknownFieldSet


def _without_unknown(name: str, plain: Plain, unknown_in: Any) -> Plain:
    """Return the function that converts a message whose value has no place for unknown fields, and refuses these."""

    def checked(message: Any) -> Any:
        if len(unknown_in(message)):
            problem = f"a {name} has unknown fields, which its value cannot hold"
            raise ValueError(problem)
        return plain(message)

    return checked


def _others(message: Any, descriptor: Any) -> bytes:
    """Return the bytes of all that a message has besides the fields of its class."""
    rest = type(message)()
    rest.CopyFrom(message)
    for field in descriptor.fields:
        rest.ClearField(field.name)
    found: bytes = rest.SerializePartialToString(deterministic=True)
    return found


def _getter(field: Any, known: dict[str, Plain]) -> Plain:
    name, get, of = field.name, attrgetter(field.name), _plain_single(field, known)
    if _is_map(field):
        of_key, of_value = (_plain_single(each, known) or _same for each in field.message_type.fields)
        return lambda message: {_key_text(of_key(key)): of_value(value) for key, value in get(message).items()}
    if field.is_repeated:
        return lambda message: list(get(message)) if of is None else [of(each) for each in get(message)]
    if field.has_presence:
        some = of or _same
        return lambda message: some(get(message)) if message.HasField(name) else None
    return get if of is None else lambda message: of(get(message))


def _plain_single(field: Any, known: dict[str, Plain]) -> Plain | None:
    """Return the function that converts one value of a field; None if it is plain."""
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return None if field.message_type is None else _plain_message(field.message_type, known)


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _same(value: Any) -> Any:
    return value


def _time(value: Any) -> dt.datetime | str:
    nanos = value.nanos
    if nanos % 1000 or not 0 <= nanos < _SECOND_NANOS:
        # A datetime would lose the nanoseconds.
        text: str = value.ToJsonString()
        return text
    return EPOCH + dt.timedelta(0, value.seconds, nanos // 1000)


def _json(value: Any) -> Any:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - of an extra

    return MessageToDict(value)


# To messages


def _fill_message(descriptor: Any, known: dict[str, Fill]) -> Fill:
    name = descriptor.full_name
    if name in known:
        return known[name]
    if name in WRAPPERS:
        return _fill_wrapper
    if name in _JSON:
        return _fill_json
    if name == _TIMESTAMP:
        return _fill_timestamp
    setters: dict[str, Fill] = {}
    choices = [{field.name for field in each.fields} for each in descriptor.oneofs if len(each.fields) > 1]

    def fill(message: Any, value: Any) -> None:
        if name == _DURATION and isinstance(value, dt.timedelta):
            message.FromTimedelta(value)
            return
        given = [each for each in _items(value, name) if each[1] is not None]
        if UNKNOWN in value:
            given = [each for each in given if each[0] != UNKNOWN]
            # First, so that a field which the class knows by now has the value that the dict gives it.
            message.MergeFromString(value[UNKNOWN])
        for choice in choices:
            _check_choice(choice, given)
        for field, each in given:
            _set(setters, name, message, field, each)

    # Before the fields, as a message may contain itself.
    known[name] = fill
    setters |= {field.name: _setter(field, known) for field in descriptor.fields}
    return fill


def _items(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a {name}")
    return value.items()


def _check_choice(choice: set[str], given: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in given if name in choice]
    if len(names) > 1:
        raise ValueError(f"only one of the fields {' and '.join(names)} may have a value")


def _set(setters: dict[str, Fill], name: str, message: Any, field: str, value: Any) -> None:
    if field not in setters:
        problem = f"{name} has no field named {field}"
        raise ValueError(problem)
    try:
        setters[field](message, value)
    except (TypeError, ValueError) as error:
        problem = f"{field}: {error}"
        raise ValueError(problem) from error


def _setter(field: Any, known: dict[str, Fill]) -> Fill:
    name = field.name
    if _is_map(field):
        return _map_setter(field, known)
    if field.message_type is None:
        if field.is_repeated:
            return lambda message, value: getattr(message, name).extend(value)
        return lambda message, value: setattr(message, name, value)
    fill = _fill_message(field.message_type, known)
    if field.is_repeated:

        def extend(message: Any, value: Any) -> None:
            for each in value:
                fill(getattr(message, name).add(), each)

        return extend

    def put(message: Any, value: Any) -> None:
        part = getattr(message, name)
        # An empty message is present, too.
        part.SetInParent()
        fill(part, value)

    return put


def _map_setter(field: Any, known: dict[str, Fill]) -> Fill:
    name, (of_key, of_value) = field.name, field.message_type.fields
    to_key = (
        _same
        if of_key.cpp_type == of_key.CPPTYPE_STRING
        else _boolean
        if of_key.cpp_type == of_key.CPPTYPE_BOOL
        else int
    )
    if of_value.message_type is None:

        def update(message: Any, value: Any) -> None:
            for key, each in _items(value, "map"):
                getattr(message, name)[to_key(key)] = each

        return update
    fill = _fill_message(of_value.message_type, known)

    def put(message: Any, value: Any) -> None:
        for key, each in _items(value, "map"):
            fill(getattr(message, name)[to_key(key)], each)

    return put


def _boolean(key: str) -> bool:
    if key not in {"true", "false"}:
        raise ValueError(f"{key!r} is not a bool")
    return key == "true"


def _fill_wrapper(message: Any, value: Any) -> None:
    message.value = value


def _fill_timestamp(message: Any, value: Any) -> None:
    if isinstance(value, dt.datetime):
        message.FromDatetime(moment(value))
    else:
        message.FromJsonString(value)


def _fill_json(message: Any, value: Any) -> None:
    from google.protobuf.json_format import ParseDict, ParseError  # noqa: PLC0415 - of an extra

    try:
        ParseDict(value, message)
    except ParseError as error:
        raise ValueError(str(error)) from error


# Other forms of values


def _changed(descriptor: Any, value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a value of a message in which `change` has replaced each value of a field that is not a message."""
    name = descriptor.full_name
    if name in WRAPPERS:
        return _changed_single(descriptor.fields_by_name["value"], value, change)
    if name in _JSON or name == _TIMESTAMP or not isinstance(value, dict):
        return value
    fields = descriptor.fields_by_name
    return {key: _changed_field(fields[key], each, change) if key in fields else each for key, each in value.items()}


def _changed_field(field: Any, value: Any, change: Callable[[Any, Any], Any]) -> Any:
    if _is_map(field) and isinstance(value, dict):
        of_value = field.message_type.fields_by_name["value"]
        return {key: _changed_single(of_value, each, change) for key, each in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [_changed_single(field, each, change) for each in value]
    return _changed_single(field, value, change)


def _changed_single(field: Any, value: Any, change: Callable[[Any, Any], Any]) -> Any:
    if value is None:
        return None
    return change(field, value) if field.message_type is None else _changed(field.message_type, value, change)


def _as_text(field: Any, value: Any) -> Any:
    return str(value) if field.enum_type is not None else value


def _of_json(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return _bytes_of_json(value)
    is_fraction = field.cpp_type in {field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT}
    return float(value) if is_fraction and value in ODD_NUMBERS else value


def _with_unknown(value: Any) -> Any:
    """Return JSON with the bytes of unknown fields, of all messages in it."""
    if isinstance(value, list):
        return [_with_unknown(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _bytes_of_json(each) if key == UNKNOWN else _with_unknown(each) for key, each in value.items()}


def _bytes_of_json(value: Any) -> bytes:
    if not isinstance(value, str):
        message = f"{value!r} is not base64"
        raise ValueError(message)  # noqa: TRY004 - what a text says
    return base64.b64decode(value, validate=True)


# Types


def _type(descriptor: Any, within: tuple[str, ...]) -> Any:
    if descriptor.full_name in within or descriptor.full_name in _JSON:
        # JSON, or the message contains itself.
        return Any
    if descriptor.full_name in WRAPPERS:
        return _single(descriptor.fields_by_name["value"], within)
    if descriptor.full_name == _TIMESTAMP:
        return dt.datetime
    within = (*within, descriptor.full_name)
    return _typed_dict(descriptor.name, {field.name: _field_type(field, within) for field in descriptor.fields})


def _field_type(field: Any, within: tuple[str, ...]) -> Any:
    if _is_map(field):
        return dict[str, _single(field.message_type.fields_by_name["value"], within)]  # type: ignore[misc]
    found = _single(field, within)
    if field.is_repeated:
        return list[found]  # type: ignore[valid-type]
    return found | None if field.has_presence and found is not Any else found


def _single(field: Any, within: tuple[str, ...]) -> Any:
    if field.message_type is not None:
        return _type(field.message_type, within)
    if field.enum_type is not None:
        return str
    kinds = {field.CPPTYPE_BOOL: bool, field.CPPTYPE_DOUBLE: float, field.CPPTYPE_FLOAT: float}
    if field.cpp_type == field.CPPTYPE_STRING:
        return bytes if field.type == field.TYPE_BYTES else str
    return kinds.get(field.cpp_type, int)


def _is_map(field: Any) -> bool:
    return bool(field.is_repeated) and field.message_type is not None and field.message_type.GetOptions().map_entry
