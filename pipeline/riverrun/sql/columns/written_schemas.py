"""Schemas as registries hold them: texts with their ids and references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """A schema that another one imports: the name in the import, its subject and version, and its text."""

    name: str
    subject: str
    version: int
    text: str
    references: tuple[ReferencedSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """A schema of a registry.

    Args:
        id: Its id.
        type: `AVRO`, `JSON` or `PROTOBUF`.
        text: The schema as it was registered.
        references: The schemas that it imports.
    """

    id: int
    type: str
    text: str
    references: tuple[ReferencedSchema, ...] = ()


def as_registered(schema: WrittenSchema) -> Any:
    """Return a schema as the client of a registry takes it (`Schema`)."""
    from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - of an extra

    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Schema(schema.text, schema.type, references)
