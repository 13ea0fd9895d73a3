"""Builds an application's topology where it runs: in the driver and, from the same reference, on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from riverrun.dsl.builder import StreamsBuilder
from riverrun.hosting.application import topology_of

if TYPE_CHECKING:
    from riverrun.config import AppConfig
    from riverrun.topology.topology import Topology


class VersionedJob(Protocol):
    """Names the topology to build: a `Job` of a bounded run, or a `StreamJob` of a worker."""

    @property
    def config(self) -> AppConfig:
        """The application."""
        ...

    @property
    def version(self) -> str:
        """The version of the application."""
        ...


def build_topology(job: VersionedJob) -> Topology:
    """Return the topology of a job's application and version.

    Raises:
        ConfigError: If there is no such function, or it raises.
        TopologyError: If it does not return a topology.
    """
    return topology_of(job.config, job.version, StreamsBuilder)
