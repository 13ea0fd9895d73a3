"""Imports from any source that Spark can read into topics, and exports from topics to any target that it can write.

Start with `imports` and `exports`. May import Spark's package and the layers below, but neither the worker nor the DSL.
"""

from __future__ import annotations
