"""Parses Avro schemas together with the schemas that they reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.schemas.registry import Registry


def _same(schema: Any) -> Any:
    return schema


def parsed(schema: Any, registry: Registry, changed: Callable[[Any], Any] = _same) -> Any:
    """Return a schema in the library's form, together with the schemas that it references.

    Args:
        schema: The schema (`Schema`).
        registry: Has the schemas that it references.
        changed: Changes each of the schemas, as parsed JSON, before use.

    Raises:
        ConfigError: If it is none.
    """
    from confluent_kafka.schema_registry.avro import parse_schema_with_repo  # noqa: PLC0415 - of an extra
    from fastavro.repository import SchemaRepositoryError  # noqa: PLC0415
    from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415

    try:
        text = json.dumps(changed(json.loads(schema.schema_str)))
        return parse_schema_with_repo(text, named_schemas=_named(schema, registry, changed))
    except (SchemaParseException, SchemaRepositoryError, UnknownType, ValueError) as error:
        message = f"This is not an Avro schema: {type(error).__name__}: {error}"
        raise ConfigError(message, hint="Pass the schemas that it refers to as references=.") from error


def _named(schema: Any, registry: Registry, changed: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the schemas that a schema references, directly or indirectly, by name."""
    found: dict[str, Any] = {}
    for reference in schema.references or ():
        other = registry.version(reference.subject, reference.version).schema
        found |= _named(other, registry, changed)
        found[reference.name] = changed(json.loads(other.schema_str))
    return found
