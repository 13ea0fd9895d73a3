"""Formats of topics and state, which convert between bytes and rows of SQL."""

from __future__ import annotations

from riverrun.sql.formats.debezium_rows import FORMATS_OF_CHANGES, Changes, types_of_text
from riverrun.sql.formats.named_rows import named
from riverrun.sql.formats.rows import row_serde
from riverrun.sql.formats.serdes import Form, key_serde, plain_key_format, value_serde

__all__ = [
    "FORMATS_OF_CHANGES",
    "Changes",
    "Form",
    "key_serde",
    "named",
    "plain_key_format",
    "row_serde",
    "types_of_text",
    "value_serde",
]
