"""Functions of JSON texts."""

from __future__ import annotations

import base64
import decimal
import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import scalar
from riverrun.sql.functions.values import check_size
from riverrun.sql.types import Array, Map, Primitive, SqlType, Struct
from riverrun.sql.values import date_text, double_text, time_text, timestamp_text

if TYPE_CHECKING:
    from collections.abc import Callable

THEME = "JSON"
_INVALID = object()
# Numbers with more digits are written with an exponent: 1e999999999 would be a text of a billion zeros.
_MOST_DIGITS = 1000
_STEP = re.compile(r"""\.(?P<name>[^.\[\]]+)|\[\s*(?:(?P<index>-?\d+)|'(?P<single>[^']*)'|"(?P<double>[^"]*)")\s*\]""")


def _no_json(constant: str) -> None:
    """Refuse NaN and infinities, which Python's parser accepts."""
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_float=decimal.Decimal, parse_constant=_no_json)
_MISTAKES = (ValueError, ArithmeticError, RecursionError)


def _decoded(text: str | None) -> Any:
    """Parse JSON, with all digits of its numbers."""
    try:
        return _INVALID if text is None else _DECODER.decode(text)
    except _MISTAKES:
        return _INVALID


def _parsed(text: str | None) -> Any:
    """Parse JSON whose texts have whole characters only."""
    return _sound(text, _decoded(text))


def _first(text: str) -> Any:
    """Parse the JSON at the beginning of a text."""
    try:
        return _sound(text, _DECODER.raw_decode(text.lstrip())[0])
    except _MISTAKES:
        return _INVALID


def _sound(text: str | None, value: Any) -> Any:
    # An escape such as \ud800 makes a lone surrogate, half of a character, which no format can write.
    if text is not None and "\\ud" in text.lower() and value is not _INVALID:
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            return _INVALID
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _written(value)


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[str | int, ...]:
    """Parse a path: names, and positions in arrays."""
    if not path.startswith("$"):
        raise ValueError(f"a path to a JSON field begins with $: {path}")
    found: list[str | int] = []
    at = 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError(f"not a path to one JSON field: {path}")
        name = next((step[kind] for kind in ("name", "single", "double") if step[kind] is not None), None)
        found.append(int(step["index"]) if name is None else name)
        at = step.end()
    return tuple(found)


@scalar("EXTRACTJSONFIELD(json STRING, path STRING) -> STRING", theme=THEME, constants={"path": _steps})
def extracted(text: str, path: str) -> str | None:
    """The field at a path such as `$.log.tags[0]`: a string as it is, anything else as JSON. NULL if it is not there."""
    value = _first(text)
    for step in _steps(path):
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if 0 <= step < len(value) else None
        else:
            return None
    return None if value is None or value is _INVALID else _as_text(value)


@scalar("IS_JSON_STRING(json STRING) -> BOOLEAN", theme=THEME, nulls=True)
def is_json(text: str | None) -> bool:
    """Whether a text is valid JSON."""
    return _decoded(text) is not _INVALID


@scalar("JSON_ARRAY_LENGTH(json STRING) -> INTEGER", theme=THEME)
def json_array_length(text: str) -> int | None:
    """The number of items of an array; NULL if it is none."""
    items = _parsed(text)
    return len(items) if isinstance(items, list) else None


@scalar("JSON_ARRAY_CONTAINS(json STRING, item X) -> BOOLEAN", theme=THEME, nulls=True)
def json_array_contains(text: str | None, item: Any) -> bool:
    """Whether an item of just that type is in an array."""
    items = _parsed(text)
    return isinstance(items, list) and any(type(each) is type(item) and each == item for each in map(_plain, items))


def _plain(item: Any) -> Any:
    return float(item) if isinstance(item, decimal.Decimal) else item


@scalar("JSON_KEYS(json STRING) -> ARRAY<STRING>", theme=THEME)
def json_keys(text: str) -> list[str] | None:
    """The names of an object's fields; NULL if it is none."""
    fields = _parsed(text)
    return list(fields) if isinstance(fields, dict) else None


@scalar("JSON_RECORDS(json STRING) -> MAP<STRING, STRING>", theme=THEME)
def json_records(text: str) -> dict[str, str] | None:
    """An object's fields: strings as they are, other values as JSON; NULL if it is none."""
    fields = _parsed(text)
    return {name: _as_text(value) for name, value in fields.items()} if isinstance(fields, dict) else None


@scalar("JSON_ITEMS(json STRING) -> ARRAY<STRING>", theme=THEME)
def json_items(text: str) -> list[str] | None:
    """An array's items, each as JSON; NULL if it is none."""
    items = _parsed(text)
    return [_written(item) for item in items] if isinstance(items, list) else None


@scalar("JSON_CONCAT(first STRING, [more STRING...]) -> STRING", theme=THEME)
def json_concatenated(*texts: str) -> str | None:
    """Objects united, or arrays and single values as one array; NULL if one is not JSON."""
    check_size(sum(map(len, texts)))
    values = [_parsed(text) for text in texts]
    if any(value is _INVALID for value in values):
        return None
    if all(isinstance(value, dict) for value in values):
        return _written({name: item for value in values for name, item in value.items()})
    return _written([item for value in values for item in (value if isinstance(value, list) else [value])])


@scalar("TO_JSON_STRING(value X) -> STRING", theme=THEME, nulls=True, typed=True)
def to_json(type_: SqlType | None) -> Callable[[Any], str]:
    """The value as JSON; dates and times as ISO 8601 has them, bytes in Base64."""
    prepare = _preparation(type_)
    return lambda value: _written(prepare(value))


_PREPARED: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.DATE: date_text,
    Primitive.TIME: time_text,
    Primitive.TIMESTAMP: timestamp_text,
    Primitive.BYTES: lambda value: base64.b64encode(value).decode(),
}


def _preparation(type_: SqlType | None) -> Callable[[Any], Any]:
    """Return the function that prepares values of a type for JSON."""
    match type_:
        case Array():
            item = _preparation(type_.item)
            return _unless_null(lambda items: [item(each) for each in items])
        case Map():
            value = _preparation(type_.value)
            return _unless_null(lambda entries: {key: value(each) for key, each in entries.items()})
        case Struct():
            fields = {name: _preparation(field) for name, field in type_.fields}
            return _unless_null(lambda struct: {name: prepare(struct[name]) for name, prepare in fields.items()})
        case Primitive() if type_ in _PREPARED:
            return _unless_null(_PREPARED[type_])
    return lambda value: value


def _unless_null(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else run(value)


def _written(value: Any) -> str:
    """Write JSON, with all digits of exact numbers."""
    match value:
        case decimal.Decimal():
            return f"{value:f}" if abs(value.adjusted()) < _MOST_DIGITS else str(value)
        case float() if not math.isfinite(value):
            return f'"{double_text(value)}"'
        case list():
            return f"[{','.join(map(_written, value))}]"
        case dict():
            return "{" + ",".join(f"{_written(str(name))}:{_written(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
