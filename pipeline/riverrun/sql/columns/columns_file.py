"""The file of columns next to a file of statements, such as `orders.columns.json` next to `orders.sql`.

It belongs under version control, like a lock file: every process builds the same topology from it, whatever the registry
holds by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from riverrun.decoders import json_decoder
from riverrun.sql.columns.requests import Found
from riverrun.sql.columns.written_schemas import WrittenSchema  # noqa: TC001 - msgspec reads the annotation
from riverrun.sql.errors import SqlError
from riverrun.sql.grammar.statement_parser import KsqlParser
from riverrun.sql.grammar.tokens import RESERVED, Ksql, words
from riverrun.sql.types import Array, Map, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.sql.columns.requests import Resolver, Wanted

_PLAIN_NAME = re.compile("[A-Z_][A-Z0-9_]*")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The columns of the keys or values of a source; and what its statement says of them, to notice that it has changed."""

    source: str
    part: Literal["key", "value"]
    topic: str
    format: str
    columns: dict[str, str]
    schema_id: int
    is_by_id: bool = False
    full_name: str | None = None
    is_wrapped: bool = True
    schema: WrittenSchema | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """Return what the statement says."""
        schema_id = self.schema_id if self.is_by_id else None
        return self.topic, self.format, schema_id, self.full_name, self.is_wrapped


@dataclass(frozen=True, slots=True)
class ColumnsFile:
    """Finds columns in a file (`Resolver`), which is read when the first ones are wanted."""

    path: Path

    @classmethod
    def next_to(cls, statements: str) -> ColumnsFile:
        """Return the file of a file of statements."""
        return cls(Path(statements).with_suffix(".columns.json"))

    def found(self, wanted: Wanted) -> Found:
        """Return the columns.

        Raises:
            SqlError: If the file has none, or those of another topic, format or schema.
        """
        named = [each for each in self.entries() if (each.source, each.part) == (wanted.source, wanted.part)]
        said = _said(wanted)
        for each in named:
            if each.said == said:
                return _found(each)
        message = f"The columns of {wanted.source} ({wanted.part}) come from the schema registry, and {self.path.name} has none"
        if named:
            message = (
                f"{self.path.name} has columns of {wanted.source} ({wanted.part}) for {_text(named[-1].said)}, "
                f"and the statement says {_text(said)}"
            )
        hint = f"`riverrun sql APP --resolve` asks the registry for them and writes {self.path.name}."
        raise SqlError(message, hint=hint)

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries; none if there is no file.

        Raises:
            SqlError: If it cannot be read.
        """
        try:
            return json_decoder(tuple[Entry, ...]).decode(self.path.read_bytes())
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            message = f"{self.path} is no file of columns: {error}"
            raise SqlError(message, hint=f"`riverrun sql APP --resolve` writes {self.path.name}.") from error

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the file; delete it if there are no entries.

        Raises:
            SqlError: If it cannot be written.
        """
        try:
            if entries:
                self.path.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n")
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            message = f"{self.path} cannot be written: {error}"
            raise SqlError(message) from error


class Recorder:
    """Finds columns by another resolver, and keeps an entry of each."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.entries: list[Entry] = []

    def found(self, wanted: Wanted) -> Found:
        """Return the columns. Raises as the other resolver does."""
        found = self._resolver.found(wanted)
        entry = Entry(
            source=wanted.source,
            part="key" if wanted.is_key else "value",
            topic=wanted.topic,
            format=wanted.format,
            columns={name: _type_text(type_) for name, type_ in found.columns},
            schema_id=found.schema_id,
            is_by_id=wanted.schema_id is not None,
            full_name=wanted.full_name,
            is_wrapped=wanted.is_wrapped,
            schema=found.schema,
        )
        if entry not in self.entries:
            self.entries.append(entry)
        return found


def changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[str]:
    """Return a line for each entry: what it has, and what is new about it."""
    known = {(each.source, each.part): each for each in before}
    lines = []
    for each in after:
        columns = ", ".join(f"{name} {type_}" for name, type_ in each.columns.items())
        line = f"{each.source} {each.part}: {columns} (schema {each.schema_id}, topic {each.topic}, {each.format})"
        lines += [line, *(f"  {change}" for change in _differences(known.pop((each.source, each.part), None), each))]
    return lines + [f"{source} {part}: removed" for source, part in known]


def _differences(old: Entry | None, new: Entry) -> list[str]:
    if old is None:
        return ["new"]
    found = [f"removed {name} {type_}" for name, type_ in old.columns.items() if name not in new.columns]
    for name, type_ in new.columns.items():
        if name not in old.columns:
            found.append(f"added {name} {type_}")
        elif old.columns[name] != type_:
            found.append(f"changed {name} from {old.columns[name]} to {type_}")
    if old.schema_id != new.schema_id:
        found.append(f"schema {new.schema_id} instead of {old.schema_id}")
    if old.said[0] != new.said[0] or old.said[1] != new.said[1]:
        found.append(f"topic {new.topic} as {new.format} instead of {old.topic} as {old.format}")
    return found or ["unchanged"]


def _said(wanted: Wanted) -> tuple[object, ...]:
    return wanted.topic, wanted.format, wanted.schema_id, wanted.full_name, wanted.is_wrapped


def _text(said: tuple[object, ...]) -> str:
    topic, format_, schema_id, full_name, is_wrapped = said
    parts = [f"topic {topic}", str(format_)]
    parts += [f"schema {schema_id}"] if schema_id is not None else []
    parts += [f"message {full_name}"] if full_name is not None else []
    return ", ".join([*parts, *([] if is_wrapped else ["one column"])])


def _found(entry: Entry) -> Found:
    columns = tuple((name, _type_of(text)) for name, text in entry.columns.items())
    return Found(columns, entry.schema_id, entry.schema)


def _type_of(text: str) -> SqlType:
    parser = KsqlParser(dialect=Ksql())
    parser.begin(text, words(text))
    return parser.sql_type()


def _type_text(type_: SqlType) -> str:
    """Return a type as statements write it, with names in backquotes where they need them."""
    match type_:
        case Array():
            return f"ARRAY<{_type_text(type_.item)}>"
        case Map():
            return f"MAP<{_type_text(type_.key)}, {_type_text(type_.value)}>"
        case Struct():
            return f"STRUCT<{', '.join(f'{_quoted(name)} {_type_text(each)}' for name, each in type_.fields)}>"
    return str(type_)


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name not in RESERVED else f"`{name}`"
