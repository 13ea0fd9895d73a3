"""Translates statements into calls of the DSL.

`planner` goes through statements, `queries` through the parts of a SELECT: sources (`relations`, `joins`), groups
(`aggregations`), `table_functions` and projections.
"""

from __future__ import annotations
