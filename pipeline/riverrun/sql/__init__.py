"""Translates statements of ksqlDB's language into topologies, by calls of the DSL."""

from __future__ import annotations

from riverrun.sql.functions import udaf, udf, udtf
from riverrun.sql.planning.planner import build_sql

__all__ = ["build_sql", "udaf", "udf", "udtf"]
