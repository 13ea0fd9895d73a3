"""Parses statements: `tokens` splits words for sqlglot, `statement_parser` and `expression_parser` are our dialect of it.

`statements` has their values, which the rest of this room works with.
"""

from __future__ import annotations
