"""Translates statements into calls of the DSL.

`planner` goes through statements, `queries` through the parts of a SELECT: sources and table functions (`relations`), `joins`,
groups (`aggregations`) and projections. `shared_topics` has the rules for sources over one topic.
"""

from __future__ import annotations
