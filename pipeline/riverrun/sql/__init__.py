"""Translates statements of ksqlDB's language into topologies, by calls of the DSL.

May import the DSL, operators, schemas and the layers below these; knows neither tasks nor hosts.
"""

from __future__ import annotations

from riverrun.sql.functions import udaf, udf, udtf
from riverrun.sql.planning.planner import build_sql

__all__ = ["build_sql", "udaf", "udf", "udtf"]
