"""Asks a schema registry for columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import StreamsError
from riverrun.schemas.registry import registry_of
from riverrun.sql.columns.schema_columns import found_in
from riverrun.sql.columns.written_schemas import ReferencedSchema, WrittenSchema
from riverrun.sql.errors import SqlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.schemas.registry import Registry
    from riverrun.sql.columns.requests import Found, Wanted


@dataclass(frozen=True, slots=True)
class RegistryColumns:
    """Finds columns in a schema registry (`Resolver`).

    Args:
        settings: Settings of `[schema_registry]`.
    """

    settings: Mapping[str, Any]

    def found(self, wanted: Wanted) -> Found:
        """Return the columns of the latest schema of the topic's subject, or of the schema with the id.

        Raises:
            SqlError: If there is no such schema, no registry answers, or SQL has no types for it.
        """
        try:
            schema = self._schema(wanted)
        except StreamsError as error:
            message = f"The columns of {wanted.source} ({wanted.part}) cannot be found: {error.message}"
            hint = error.hint or "List the columns in the statement, or register their schema."
            raise SqlError(message, hint=hint) from error
        return found_in(wanted, schema)

    def _schema(self, wanted: Wanted) -> WrittenSchema:
        registry = registry_of(self.settings)
        if wanted.schema_id is None:
            latest = registry.latest(wanted.subject)
            return _written(registry, latest.schema_id, latest.schema)
        return _written(registry, wanted.schema_id, registry.schema(wanted.schema_id))


def _written(registry: Registry, schema_id: int, schema: Any) -> WrittenSchema:
    references = tuple(_referenced(registry, each) for each in schema.references or ())
    return WrittenSchema(schema_id, schema.schema_type or "AVRO", schema.schema_str, references)


def _referenced(registry: Registry, reference: Any) -> ReferencedSchema:
    schema = registry.version(reference.subject, reference.version).schema
    further = tuple(_referenced(registry, each) for each in schema.references or ())
    return ReferencedSchema(reference.name, reference.subject, reference.version, schema.schema_str, further)
