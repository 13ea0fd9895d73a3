"""One application."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.config.sections.streams import StreamsConfig
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config.code.functions import PickledFunction


class OutputKind(Enum):
    """Says how consumers read an output: by the last record of each key, or by every record."""

    TABLE = "table"
    """The last record of each key is a row: a release corrects the rows that differ."""
    LOG = "log"
    """Each record counts: a release sends no record twice, and the new version continues."""


@dataclass(frozen=True, slots=True)
class AppConfig:
    """One application.

    Args:
        name: Its name; everything else refers to it.
        topology: Function of a `StreamsBuilder` that returns the topology, as `module:attribute`; that function; or the path
            of a file of SQL, such as `orders.sql`.
        version: Version that goes live first. Afterwards releases decide.
        schedule: Cron expression of bounded runs, for Airflow; none if left out.
        quality: Function that returns the expectations of the gate, as `module:attribute`; that function; or the path of suites
            in JSON, a file or a directory.
        quality_schedule: Cron expression of checks of the live version, for Airflow; after its runs in Airflow if left out.
        data_docs: Directory that gets Data Docs of gates and checks, below the application's name; none if left out.
        versions: Further versions to release, with their topologies.
        outputs: Kinds of outputs by topic, `table` or `log`, where the kind derived from the topology is wrong.
        max_inputs_since_gate: Number of offsets after which a cut needs a new gate; no bound if left out.
        streams: Kafka Streams' settings.
        schema_registry: The project's settings of the schema registry. Never printed: they may hold secrets.
    """

    name: str
    topology: str | PickledFunction
    version: str = "v1"
    schedule: str | None = None
    quality: str | PickledFunction | None = None
    quality_schedule: str | None = None
    data_docs: str | None = None
    versions: Mapping[str, str | PickledFunction] = field(default_factory=dict)
    outputs: Mapping[str, OutputKind] = field(default_factory=dict)
    max_inputs_since_gate: int | None = None
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    schema_registry: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def application_id(self, version: str | None = None) -> str:
        """`<name>-<version>`: consumer group, prefix of internal topics and of transactional ids."""
        return f"{self.name}-{version or self.version}"

    @property
    def docs_directory(self) -> Path | None:
        """The directory of its Data Docs, whose pages are below `site`; None if there are none."""
        return None if self.data_docs is None else Path(self.data_docs) / self.name

    def topology_of(self, version: str) -> str | PickledFunction:
        """Return the reference or function that builds a version's topology.

        Raises:
            ConfigError: If there is no such version.
        """
        known = {self.version: self.topology, **self.versions}
        if version not in known:
            message = f"Application {self.name} has no version {version!r}"
            raise ConfigError(message, hint=f"Declare it in [apps.{self.name}.versions]. {nearest(version, known)}")
        return known[version]
