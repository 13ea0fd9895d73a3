"""Types of Python as JSON Schemas, and the other way round."""

from __future__ import annotations

import json
from typing import Any, TypedDict, Union

import msgspec

from pipeline.errors import ConfigError

_typed_dict: Any = TypedDict
"""Called with what is known when it runs, which type checkers do not expect."""
_PLAIN: dict[Any, Any] = {"boolean": bool, "integer": int, "null": None, "number": float, "string": str}


def schema_of(type_: Any) -> dict[str, Any]:
    """The JSON Schema of a type, with its name as the title. Objects have no other properties: a new one may then be added.

    >>> schema_of(list[int])
    {'title': 'list[int]', 'type': 'array', 'items': {'type': 'integer'}}

    Args:
        type_: A type that msgspec can decode.

    Raises:
        ConfigError: If it has no JSON Schema.
    """
    try:
        (top,), parts = msgspec.json.schema_components([type_], ref_template="#/definitions/{name}")
    except TypeError as error:
        message = f"{type_!r} is no type that has a JSON Schema: {error}"
        raise ConfigError(message, hint="Give its schema: schema=.") from error
    for part in parts.values():
        if part.get("type") == "object" and "properties" in part:
            part.setdefault("additionalProperties", False)
    name = top.get("$ref", "").rpartition("/")[2]
    if name and f'"{top["$ref"]}"' not in json.dumps(parts):  # it is not part of itself
        top = parts.pop(name)
    title = name or (type_.__name__ if isinstance(type_, type) and not hasattr(type_, "__args__") else str(type_))
    found = {"title": title, **top}
    return {**found, "definitions": parts} if parts else found


def type_of(schema: Any) -> Any:
    """The type of what a schema's values are in Python; `Any` where that cannot be said."""
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
