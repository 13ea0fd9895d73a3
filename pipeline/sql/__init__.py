"""ksqlDB's language as topologies: statements become calls of the DSL."""

from __future__ import annotations

from pipeline.sql.functions import udaf, udf, udtf

__all__ = ["udaf", "udf", "udtf"]
