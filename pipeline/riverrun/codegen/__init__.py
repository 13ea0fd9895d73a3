"""Lines of generated functions for operators, without a call per hop, and the loops that have them.

Each operator is defined by its `process` (`riverrun.operators`). A `Writer` here writes the same as lines (`registry`), and
raises `riverrun.generated.NotGenerated` where the operator has to be called. Lines of users' functions are those of expressions
(`expressions`), and those that SQL registers for its functions (`functions`).
"""

from __future__ import annotations
