"""Messages of Protobuf schemas as registries hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import SchemaError
from riverrun.schemas.protobuf.files import add_file, file_of

if TYPE_CHECKING:
    from riverrun.sql.columns.written_schemas import ReferencedSchema, WrittenSchema


def message_of(schema: WrittenSchema, full_name: str | None) -> Any:
    """Return the descriptor of a schema's message: the named one, or the only one.

    Raises:
        SchemaError: If the schema cannot be read, or has no such message, or several and none is named.
    """
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - of an extra

    pool = DescriptorPool()
    try:
        file = _added(pool, "schema.proto", schema)
    except (TypeError, ValueError, LookupError) as error:
        message = f"The Protobuf schema cannot be read: {error}"
        raise SchemaError(message) from error
    package = f"{file.package}." if file.package else ""
    names = [f"{package}{name}" for name in file.message_types_by_name]
    if full_name is None and len(names) == 1:
        full_name = names[0]
    if full_name is None:
        message = f"The schema has several messages: {', '.join(names)}"
        raise SchemaError(message, hint="Name one of them, with VALUE_SCHEMA_FULL_NAME or KEY_SCHEMA_FULL_NAME.")
    try:
        return pool.FindMessageTypeByName(full_name)
    except KeyError:
        message = f"The schema has no message {full_name}"
        raise SchemaError(message, hint=f"There are {', '.join(names)}.") from None


def _added(pool: Any, name: str, schema: WrittenSchema | ReferencedSchema) -> Any:
    """Add the file of a schema, after those that it imports."""
    for each in schema.references:
        _added(pool, each.name, each)
    return add_file(pool, file_of(schema.text, name))
