"""Imports and exports: from any source that Spark reads into topics, and from topics into any target that it writes.

Beside applications, not part of them: what is here knows topics, and neither topologies nor tasks. `imports` and `exports` are
where to begin. May import Spark's room and what lies below; knows neither the worker nor the DSL.
"""

from __future__ import annotations
