"""Writes rows with a Protobuf schema of a registry, which statements name by its id; fields have the names of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.schemas.protobuf_types import WRAPPERS
from riverrun.sql.types import Columns, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    OtherFiller: TypeAlias = "Callable[[SqlType], Callable[[Any, Any], None]]"


def message_filler(descriptor: Any, columns: Columns, other: OtherFiller) -> Callable[[Any, Any], Any]:
    """Return a function that sets the fields of a message to the values of a row, and returns it."""
    return filling([(name, _setter(descriptor.fields_by_name[name], type_, other)) for name, type_ in columns])


def filling(setters: Sequence[tuple[str, Callable[[Any, str, Any], None]]]) -> Callable[[Any, Any], Any]:
    """Return a function that sets fields by their setters, but those without a value."""

    def fill(message: Any, row: Any) -> Any:
        for (name, put), value in zip(setters, row, strict=True):
            if value is not None:
                put(message, name, value)
        return message

    return fill


def _setter(field: Any, type_: SqlType, other: OtherFiller) -> Callable[[Any, str, Any], None]:
    if not field.is_repeated:
        return _single_setter(field, type_, other)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map_setter(field.message_type.fields_by_name["value"], getattr(type_, "value"), other)  # noqa: B009
    return _array_setter(field, getattr(type_, "item"), other)  # noqa: B009


def _single_setter(field: Any, type_: SqlType, other: OtherFiller) -> Callable[[Any, str, Any], None]:
    if field.message_type is None:
        convert = _scalar(field)
        return lambda message, name, value: setattr(message, name, convert(value))
    into = _filler(field.message_type, type_, other)
    return lambda message, name, value: into(getattr(message, name), value)


def _array_setter(field: Any, item: SqlType, other: OtherFiller) -> Callable[[Any, str, Any], None]:
    if field.message_type is None:
        convert = _scalar(field)
        empty = "" if field.type == field.TYPE_STRING else b"" if field.type == field.TYPE_BYTES else 0
        return lambda message, name, value: getattr(message, name).extend(
            empty if each is None else convert(each) for each in value
        )
    into = _filler(field.message_type, item, other)

    def put(message: Any, name: str, value: Any) -> None:
        for each in value:
            into(getattr(message, name).add(), each)

    return put


def _map_setter(field: Any, type_: SqlType, other: OtherFiller) -> Callable[[Any, str, Any], None]:
    if field.message_type is None:
        convert = _scalar(field)

        def set_all(message: Any, name: str, value: Any) -> None:
            target = getattr(message, name)
            for key, each in value.items():
                if each is not None:
                    target[key] = convert(each)

        return set_all
    into = _filler(field.message_type, type_, other)

    def put(message: Any, name: str, value: Any) -> None:
        for key, each in value.items():
            into(getattr(message, name)[key], each)

    return put


def _scalar(field: Any) -> Callable[[Any], Any]:
    """Return the function that converts a value to that of a field: names of enums to their numbers."""
    if field.enum_type is None:
        return lambda value: value
    numbers: dict[Any, int] = {name: each.number for name, each in field.enum_type.values_by_name.items()}

    def number_of(value: Any) -> int:
        if value not in numbers:
            raise ValueError(f"{value!r} is none of {', '.join(numbers)}")
        return numbers[value]

    return number_of


def _filler(descriptor: Any, type_: SqlType, other: OtherFiller) -> Callable[[Any, Any], None]:
    """Return a function that fills a message with a value; for NULL it stays empty."""
    if descriptor.full_name in WRAPPERS:
        return _set_wrapped
    if not isinstance(type_, Struct):
        return other(type_)
    fill, names = message_filler(descriptor, type_.fields, other), [name for name, _ in type_.fields]

    def into(message: Any, value: Any) -> None:
        message.SetInParent()
        if value is not None:
            fill(message, [value.get(name) for name in names])

    return into


def _set_wrapped(message: Any, value: Any) -> None:
    message.SetInParent()
    if value is not None:
        message.value = value
