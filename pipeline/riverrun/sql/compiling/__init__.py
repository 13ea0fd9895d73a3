"""Compiles expressions to lines of Python, with checked types (`expressions`), and rows to generated functions (`row_code`).

Arithmetic, comparisons and casts are ksqlDB's (`operators`); `coercion` finds common types of values.
"""

from __future__ import annotations
