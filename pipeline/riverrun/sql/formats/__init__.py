"""Formats of topics and state, which convert between bytes and rows of SQL."""

from __future__ import annotations

from riverrun.sql.formats.named_rows import named
from riverrun.sql.formats.rows import row_serde
from riverrun.sql.formats.serdes import key_serde, value_serde

__all__ = ["key_serde", "named", "row_serde", "value_serde"]
