"""Determines which values of a type are immutable, so that one object may be handed out more than once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import uuid
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

PLAIN: frozenset[type] = frozenset({int, str, float, bool})
"""The immutable types of plain JSON values."""
_ATOMS = PLAIN | {bytes, type(None), decimal.Decimal, uuid.UUID, dt.date}
"""Types without parts. Datetimes are not among them, as a round trip may change their time zone object."""
_CONTAINERS = frozenset({tuple, frozenset})


def immutable_types(type_: Any) -> frozenset[type]:
    """Return the classes of those values of a type that are immutable down to their last part.

    >>> sorted(found.__name__ for found in immutable_types(int | list[int] | None))
    ['int']
    >>> immutable_types(tuple[int, str]) == {tuple}, immutable_types(tuple[list[int], str]) == {tuple}
    (True, False)

    Args:
        type_: A type that msgspec can decode. Fields of frozen structs and dataclasses are trusted to hold what they declare.
    """
    if type_ is Any:
        return PLAIN
    members = get_args(type_) if _is_union(type_) else (type_,)
    if len(members) > 1:
        return frozenset().union(*(immutable_types(member) for member in members))
    return frozenset(_classes(type_)) - {type(None)} if _is_immutable(type_, frozenset()) else frozenset()


def _classes(type_: Any) -> set[type]:
    """Return the classes of a type's values."""
    origin = get_origin(type_)
    if origin is Annotated:
        return _classes(get_args(type_)[0])
    if origin is Literal:
        return {type(value) for value in get_args(type_)}
    return {origin or type_}


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in {Union, types.UnionType}


def _is_immutable(type_: Any, within: frozenset[Any]) -> bool:
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _is_immutable(args[0], within)
    if _is_union(type_) or origin in _CONTAINERS:
        return all(part is Ellipsis or _is_immutable(part, within) for part in args)
    if origin is Literal or type_ in _ATOMS:
        return True
    if not isinstance(type_, type) or origin is not None:
        return False
    if type_ in within or issubclass(type_, enum.Enum):
        return True
    return _is_frozen(type_) and all(_is_immutable(part, within | {type_}) for part in _fields(type_))


def _is_frozen(type_: type) -> bool:
    """Return whether an object's fields cannot be set."""
    if issubclass(type_, msgspec.Struct):
        return bool(type_.__struct_config__.frozen)
    if dataclasses.is_dataclass(type_):
        return bool(type_.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(type_, tuple) and hasattr(type_, "_fields")


def _fields(type_: type) -> list[Any]:
    """Return the types of an object's fields; `Any` if they are unknown."""
    try:
        return list(get_type_hints(type_, include_extras=True).values())
    except Exception:  # noqa: BLE001 - names that only type checkers know
        return [Any]
