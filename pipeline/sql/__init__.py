"""Translates statements of ksqlDB's language into topologies, by calls of the DSL."""

from __future__ import annotations

from pipeline.sql.functions import udaf, udf, udtf
from pipeline.sql.planner import build_sql

__all__ = ["build_sql", "udaf", "udf", "udtf"]
