"""Files of statements as a whole: columns that a schema registry has for them, and digests of what they say."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot.tokenizer_core import TokenType

from riverrun.errors import StreamsError
from riverrun.schemas.registry import registry_of
from riverrun.schemas.rules import check_written
from riverrun.schemas.subjects import Registration
from riverrun.sql.columns_file import SCHEMA_TYPES, ColumnsFile, ReadColumns, Recorder, changes
from riverrun.sql.commands import Statements
from riverrun.sql.schema_types import (
    ReferencedSchema,
    UnsupportedFieldError,
    WrittenSchema,
    avro_type,
    json_schema_type,
    protobuf_type,
)
from riverrun.sql.statements import CreateSource, DropSource, InsertInto, SqlError
from riverrun.sql.types import Array, Map, SqlType, Struct
from riverrun.sql.variables import statement_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sqlglot.tokenizer_core import Token

    from riverrun.schemas.registry import RegistryClient
    from riverrun.sql.catalog import Catalog
    from riverrun.sql.columns_file import KnownColumns, WantedColumns
    from riverrun.sql.statements import Statement
    from riverrun.sql.types import Columns

_FORMATS = {type_: format_ for format_, type_ in SCHEMA_TYPES.items()}
_AS_WRITTEN = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
"""Tokens whose case is significant."""


def resolve(text: str, file: str, schema_registry: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Write the file of columns from the registry; return its path, and lines that describe it and what has changed."""
    recorder, columns = Recorder(RegistryColumns(schema_registry)), ColumnsFile.next_to(file)
    # Planning asks for the columns, and checks that the statements fit them: a failure leaves the file as it was.
    Statements.of(text, file, columns=recorder)
    before = _known(columns)
    columns.write(recorder.entries)
    return columns.path, changes(before, recorder.entries)


def _known(columns: ColumnsFile) -> tuple[KnownColumns, ...]:
    # A file that cannot be read is no obstacle: it is about to be replaced.
    try:
        return columns.entries()
    except SqlError:
        return ()


def found_in(wanted: WantedColumns, schema: WrittenSchema) -> ReadColumns:
    if schema.type != SCHEMA_TYPES[wanted.format]:
        property_, actual = f"{wanted.part.upper()}_FORMAT", _FORMATS.get(schema.type, schema.type)
        message = (
            f"{wanted.part.capitalize()} schema is not in the expected format. "
            f"You may want to set {property_} to '{actual}'."
        )
        raise SqlError(message, hint=f"Schema {schema.id} of {wanted.subject} is {schema.type}.")
    try:
        type_ = _type(wanted, schema)
    except UnsupportedFieldError as error:
        message = f"Schema {schema.id} of {wanted.subject} has no columns in SQL: {error}"
        raise SqlError(message, hint="List the columns in the statement, without this field.") from error
    except StreamsError as error:
        message = f"Schema {schema.id} of {wanted.subject} has no columns: {error.message}"
        raise SqlError(message, hint=error.hint) from error
    columns = _columns(wanted, type_)
    _check(wanted, columns)
    return ReadColumns(columns, schema.id, None if wanted.schema_id is None else schema)


def _type(wanted: WantedColumns, schema: WrittenSchema) -> SqlType:
    if schema.type == "PROTOBUF":
        return protobuf_type(schema, wanted.full_name)
    return avro_type(schema.text, schema.references) if schema.type == "AVRO" else json_schema_type(schema.text)


def _columns(wanted: WantedColumns, type_: SqlType) -> Columns:
    # ksqlDB's rules. With a schema's id, rows are written with that schema, so names must be those of its fields.
    named = type_ if wanted.schema_id is not None else _in_upper_case(type_)
    if not wanted.is_wrapped:
        return (("ROWKEY" if wanted.is_key else "ROWVAL", named),)
    if not isinstance(named, Struct):
        message = f"The values of {wanted.topic} are not records: each is a single {named}"
        raise SqlError(message, hint="Set WRAP_SINGLE_VALUE = false: the column is ROWVAL.")
    return named.fields


def _in_upper_case(type_: SqlType) -> SqlType:
    match type_:
        case Array():
            return Array(_in_upper_case(type_.item))
        case Map():
            return Map(type_.key, _in_upper_case(type_.value))
        case Struct():
            return Struct(tuple((name.upper(), _in_upper_case(each)) for name, each in type_.fields))
    return type_


def _check(wanted: WantedColumns, columns: Columns) -> None:
    names = [name for name, _ in columns]
    problem = None
    if not columns:
        problem = "has no fields"
    elif len(set(names)) < len(names):
        problem = f"has several fields that are called {next(name for name in names if names.count(name) > 1)}"
    elif wanted.is_key and len(columns) > 1:
        problem = f"of keys has several fields, {', '.join(names)}, and a key has one column"
    if problem:
        raise SqlError(f"The schema of {wanted.subject} {problem}", hint="List the columns in the statement.")


@dataclass(frozen=True, slots=True)
class RegistryColumns:
    """Finds columns in a schema registry (`Resolver`); `settings` are those of `[schema_registry]`."""

    settings: Mapping[str, Any]

    def found(self, wanted: WantedColumns) -> ReadColumns:
        """Return the columns of the latest schema of the topic's subject, or of the schema with the id."""
        try:
            schema = self._schema(wanted)
        except StreamsError as error:
            message = f"The columns of {wanted.source} ({wanted.part}) cannot be found: {error.message}"
            hint = error.hint or "List the columns in the statement, or register their schema."
            raise SqlError(message, hint=hint) from error
        return found_in(wanted, schema)

    def _schema(self, wanted: WantedColumns) -> WrittenSchema:
        registry = registry_of(self.settings)
        if wanted.schema_id is None:
            latest = registry.latest(wanted.subject)
            return _written(registry, latest.schema_id, latest.schema)
        schema = registry.schema(wanted.schema_id)
        # Rows are written with a schema of these columns, in the subject of their topic, which lacks the rules.
        if not Registration.of(self.settings).ignore_rules:
            check_written(schema, f"schema {wanted.schema_id}")
        return _written(registry, wanted.schema_id, schema)


def _written(registry: RegistryClient, schema_id: int, schema: Any) -> WrittenSchema:
    references = tuple(_referenced(registry, each) for each in schema.references or ())
    return WrittenSchema(schema_id, schema.schema_type or "AVRO", schema.schema_str, references)


def _referenced(registry: RegistryClient, reference: Any) -> ReferencedSchema:
    schema = registry.version(reference.subject, reference.version).schema
    further = tuple(_referenced(registry, each) for each in schema.references or ())
    return ReferencedSchema(reference.name, reference.subject, reference.version, schema.schema_str, further)


def statement_digests(text: str, file: str) -> dict[str, str]:
    """Return a digest per statement, 16 hex digits, under names such as `CREATE TABLE TOTALS`.

    `SET`, `UNSET` and types have no digests: types are part of the columns.
    """
    found = Statements.of(text, file)
    digests: dict[str, str] = {}
    for statement, tokens in zip(found.statements, _parted(text), strict=True):
        name = _name_of(statement)
        if name is None:
            continue
        count = sum(each.partition(" #")[0] == name for each in digests)
        digests[f"{name} #{count + 1}" if count else name] = _digest(statement, tokens, found.catalog)
    return digests


def _parted(text: str) -> Iterator[list[Token]]:
    """Yield the words of each statement."""
    tokens: list[Token] = []
    for token in statement_words(text):
        if token.text != ";" or token.token_type in _AS_WRITTEN:
            tokens.append(token)
        elif tokens:
            yield tokens
            tokens = []
    if tokens:
        yield tokens


def _name_of(statement: Statement) -> str | None:
    match statement:
        case CreateSource():
            return f"CREATE {'TABLE' if statement.is_table else 'STREAM'} {statement.name}"
        case InsertInto():
            return f"INSERT INTO {statement.name}"
        case DropSource():
            return f"DROP {'TABLE' if statement.is_table else 'STREAM'} {statement.name}"
        case _:
            return None


def _digest(statement: Statement, tokens: list[Token], catalog: Catalog) -> str:
    # Spaces, comments and the case of words do not count. Columns and formats do: those of a `SELECT *` change with its
    # source.
    said = [each.text if each.token_type in _AS_WRITTEN else each.text.upper() for each in tokens]
    source = catalog.sources.get(getattr(statement, "name", ""))
    made: Any = None if source is None else source.layout
    query = statement.query if isinstance(statement, CreateSource | InsertInto) else None
    into = [] if query is None else [each.name for select in query.selects for each in select.late]
    if into:
        # The statement does not list the columns of late rows: they are those of the query's sources.
        made = (made, *(late.layout for name in into if (late := catalog.sources.get(name))))
    return hashlib.sha256(repr((said, made)).encode()).hexdigest()[:16]
