"""Checks of imports and exports without Spark, whose start takes many seconds."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from riverrun.errors import ConfigError
from riverrun.spark.formats import check_format, has_files
from riverrun.spark.session import DEFAULT_MASTER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from riverrun.transfers.specs import ImportSpec

_TYPES = frozenset(
    """
    array bigint binary boolean byte char character date dec decimal double float int integer interval long map numeric
    real short smallint string struct time timestamp timestamp_ltz timestamp_ntz tinyint varchar variant void
    """.split()  # noqa: SIM905 - as a list it takes a page
)
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)\s*:?\s+(\w+)[^`]*|\s*(`(?:[^`]|``)+`|\w+):(\w+)[^`]*")
_PATTERN = re.compile(r"[*?\[\]{}\\]")


def check_import(spec: ImportSpec, settings: Mapping[str, str], master: str | None, packages: Collection[str]) -> None:
    """Find mistakes in an import, before Spark starts; `master` overrides the settings of Spark."""
    check_format(spec.format, settings, packages)
    check_schema(spec.schema)
    path = source_here(spec, settings, master)
    if path is not None:
        if not path.exists():
            message = f"File or directory {spec.source} does not exist"
            raise ConfigError(message)
        # Not for directories, whose names may add columns.
        if spec.schema is not None and path.is_file():
            _check_columns(spec, spec.schema)


def source_here(spec: ImportSpec, settings: Mapping[str, str], master: str | None) -> Path | None:
    """Return the file or directory of this machine that an import reads; None if the source is elsewhere."""
    where = master or settings.get("spark.remote") or settings.get("spark.master") or DEFAULT_MASTER
    is_here = where.startswith("local") and not any(key.endswith("fs.defaultFS") for key in settings)
    return _local(spec.source) if is_here and has_files(spec.format) else None


def check_schema(schema: str | None) -> None:
    """Refuse a schema with types that Spark does not know."""
    for column in _columns("" if schema is None or schema.lower().lstrip().startswith("struct<") else schema):
        found = _COLUMN.fullmatch(column)
        kind = (found[2] or found[4]).lower() if found else ""
        if kind not in _TYPES:
            near = difflib.get_close_matches(kind, _TYPES, 1)
            message = f"The schema has {column.strip()!r}, which is not a column with a Spark type"
            hint = f"Did you mean {near[0]!r}?" if near else 'For example --schema "user string, at timestamp".'
            raise ConfigError(message, hint=hint)


def _check_columns(spec: ImportSpec, schema: str) -> None:
    found = [_COLUMN.fullmatch(column) for column in _columns(schema)]
    names = {(each[1] or each[3]).strip("`").lower() for each in found if each}
    wanted = [*spec.key, spec.value, spec.timestamp, spec.incremental]
    missing = [column for column in wanted if column is not None and column.lower() not in names]
    if missing:
        message = f"The schema has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"It has: {schema}.")


def _columns(schema: str) -> Iterator[str]:
    """Return the columns of a schema, split at commas outside brackets and quotes.

    >>> list(_columns("a int, b map<string, decimal(3, 1)>"))
    ['a int', ' b map<string, decimal(3, 1)>']
    """
    depth, is_quoted, start = 0, False, 0
    for at, sign in enumerate(schema):
        if sign in "`'\"":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (sign in "(<") - (sign in ")>")
            if sign == "," and not depth:
                yield schema[start:at]
                start = at + 1
    if schema.strip():
        yield schema[start:]


def _local(source: str) -> Path | None:
    """Return a path on this machine; None if the source is elsewhere, or a pattern."""
    parts = urlsplit(source)
    if _PATTERN.search(source) or parts.scheme not in {"", "file"}:
        return None
    return Path(unquote(parts.path) if parts.scheme else source)
