"""Schemas as JSON text, and as the objects of the registry's client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_DEEPEST = 200


class Reference(NamedTuple):
    """A reference to another schema: its name there, and its subject and version."""

    name: str
    subject: str
    version: int


def json_text(schema: str | Mapping[str, Any] | Sequence[Any] | None, kind: str) -> str | None:
    """Return a schema as JSON text; None for no schema."""
    if schema is None:
        return None
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        check_depth(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} must be JSON: {error}") from error
    return text


def client_schema(text: str | None, type_: str, references: Sequence[Reference]) -> Any:
    """Return a schema as the registry's client takes it (`Schema`); None for no text."""
    from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - of an extra

    return None if text is None else Schema(text, type_, [SchemaReference(*each) for each in references])


def is_same_json(one: Any, other: Any, _registry: object = None) -> bool:
    """Return whether a registry has one id for two schemas in JSON: they differ at most in spaces and the order of fields."""
    return one.schema_type == other.schema_type and bool(json.loads(one.schema_str) == json.loads(other.schema_str))


def check_depth(schema: Any) -> None:
    """Check that JSON is not nested too deeply for the recursion of those that read it."""
    # Level by level, as recursion is what this protects from.
    level = [schema]
    for _ in range(_DEEPEST):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
