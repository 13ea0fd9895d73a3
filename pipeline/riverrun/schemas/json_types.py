"""Converts between types of Python and JSON Schemas."""

from __future__ import annotations

import json
from typing import Any, TypedDict, Union

import msgspec

from riverrun.errors import ConfigError

_typed_dict: Any = TypedDict
"""Called with types that are known at run time only, which type checkers do not expect."""
_PLAIN: dict[Any, Any] = {"boolean": bool, "integer": int, "null": None, "number": float, "string": str}


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, titled with its name. Objects are closed, so that properties can be added later.

    >>> schema_of(list[int])
    {'title': 'list[int]', 'type': 'array', 'items': {'type': 'integer'}}

    Args:
        type_: A type that msgspec can decode.

    Raises:
        ConfigError: If the type has no JSON Schema.
    """
    try:
        (top,), parts = msgspec.json.schema_components([type_], ref_template="#/definitions/{name}")
    except TypeError as error:
        message = f"{type_!r} has no JSON Schema: {error}"
        raise ConfigError(message, hint="Pass a schema: schema=.") from error
    for part in parts.values():
        if part.get("type") == "object" and "properties" in part:
            part.setdefault("additionalProperties", False)
    name = top.get("$ref", "").rpartition("/")[2]
    if name and f'"{top["$ref"]}"' not in json.dumps(parts):  # a type that does not contain itself
        top = parts.pop(name)
    title = name or (type_.__name__ if isinstance(type_, type) and not hasattr(type_, "__args__") else str(type_))
    found = {"title": title, **top}
    return {**found, "definitions": parts} if parts else found


def type_of(schema: Any) -> Any:
    """Return the Python type of a schema's values; `Any` where it cannot be expressed."""
    if not isinstance(schema, dict):
        return Any
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(type_of({**schema, "type": each}) for each in kind)]  # noqa: UP007 - made of values
    if "oneOf" in schema or "anyOf" in schema:
        return Union[tuple(map(type_of, schema.get("oneOf") or schema["anyOf"]))]  # noqa: UP007
    if kind == "array":
        return list[type_of(schema.get("items"))]  # type: ignore[misc]
    if kind == "object" and schema.get("properties"):
        fields = {name: type_of(each) for name, each in schema["properties"].items()}
        return _typed_dict(str(schema.get("title", "Object")), fields, total=False)
    return _PLAIN.get(kind, Any)
