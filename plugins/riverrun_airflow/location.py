"""The location of a project, as a task has found it: its driver reads the project from there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.config import ProjectConfig
from riverrun.config.code import look_beside
from riverrun.config.parsing import OAUTH_CALLBACK, check_oauth, check_property
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONNECT, _PLACES = "sc://", ("spark.master", "spark.remote")


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a project, with a connection's further settings.

    Args:
        path: Path of `streams.toml`.
        kafka: Client properties that override those of the project. Never printed.
        master: Spark's master URL, or that of a Spark Connect server; empty if the project says it.
    """

    path: Path
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    master: str = ""

    def project(self) -> ProjectConfig:
        """Read the project. Makes the modules next to `streams.toml` importable."""
        project = ProjectConfig.load(self.path, os.environ)
        for key in self.kafka:
            check_property(self.path, key)
        if OAUTH_CALLBACK in self.kafka:
            message = f"A connection cannot set {OAUTH_CALLBACK}, which names code"
            raise ConfigError(message, hint="Set it in [kafka] of streams.toml.")
        look_beside(self.path)
        spark = dict(project.spark)
        if self.master:
            spark = {key: value for key, value in spark.items() if key not in _PLACES}
            spark[_PLACES[self.master.startswith(_CONNECT)]] = self.master
        kafka = {**project.kafka, **self.kafka}
        check_oauth(self.path, kafka)
        return replace(project, kafka=kafka, spark=spark)
