"""`[neighbours.NAME]` of `streams.toml`: programs of others, and the topics that these share with the project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import check_keys, check_name, check_type
from riverrun.config.links import Links
from riverrun.errors import ConfigError
from riverrun.records import is_legal_topic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_KEYS = "reads", "writes"


@dataclass(frozen=True, slots=True)
class NeighbourConfig:
    """A program outside the project, at the rim of its graph.

    Args:
        name: Its name in the graph.
        reads: Topics that it reads.
        writes: Topics that it writes.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def links(self) -> Links:
        """Its place in the graph of the project."""
        return Links(self.reads, self.writes, is_known=False)


def neighbour_config(path: Path, name: str, table: Any, _environ: Mapping[str, str]) -> NeighbourConfig:
    """Check `[neighbours.NAME]`."""
    where = f"neighbours.{name}"
    check_type(path, where, table, dict, hint="Write [neighbours.NAME], a table for each neighbour.")
    check_name(path, "neighbour", name)
    check_keys(path, where, table, _KEYS)
    reads, writes = (_topics(path, f"{where}.{key}", table.get(key, [])) for key in _KEYS)
    if not reads and not writes:
        message = f"{path}: [{where}] needs reads or writes"
        raise ConfigError(message, hint='For example reads = ["totals"], writes = ["orders"].')
    return NeighbourConfig(name, reads, writes)


def _topics(path: Path, where: str, topics: Any) -> tuple[str, ...]:
    check_type(path, where, topics, list)
    for topic in topics:
        check_type(path, where, topic, str)
        if not is_legal_topic(topic):
            message = f"{path}: {where} has {topic!r}, which is not the name of a topic"
            raise ConfigError(message, hint="Names have the characters a-z A-Z 0-9 . _ -, at most 249 of them.")
    return tuple(dict.fromkeys(topics))
