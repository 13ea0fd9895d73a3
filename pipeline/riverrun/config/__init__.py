"""`streams.toml`: which applications there are, where Kafka is, and how they run.

Needs the standard library only, so that Airflow can parse the file for every DAG. Unknown names are refused, with the nearest
known name as a hint.
"""

from __future__ import annotations

from riverrun.config.addons import AddOn, TopologyLoader
from riverrun.config.code import call_attribute, load_attribute
from riverrun.config.parsing import streams_config
from riverrun.config.project import ProjectConfig
from riverrun.config.sections import AppConfig, OutputKind
from riverrun.config.streams import (
    AT_LEAST_ONCE,
    BOUNDED_ENGINES,
    BOUNDED_WALL_CLOCK,
    EXACTLY_ONCE_V2,
    Optimization,
    StreamsConfig,
    TopologyConfig,
    parse_optimization,
)

__all__ = [
    "AT_LEAST_ONCE",
    "BOUNDED_ENGINES",
    "BOUNDED_WALL_CLOCK",
    "EXACTLY_ONCE_V2",
    "AddOn",
    "AppConfig",
    "Optimization",
    "OutputKind",
    "ProjectConfig",
    "StreamsConfig",
    "TopologyConfig",
    "TopologyLoader",
    "call_attribute",
    "load_attribute",
    "parse_optimization",
    "streams_config",
]
