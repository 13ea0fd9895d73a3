"""Imports from any source that Spark can read into topics, and exports from topics to any target that it can write.

This package knows topics, but neither topologies nor tasks. Start with `imports` and `exports`. May import
Spark's room and the layers below; knows neither the worker nor the DSL.
"""

from __future__ import annotations
