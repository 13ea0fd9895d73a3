"""Meanings of a version's outputs: tables, which a release corrects, or logs, of which it sends nothing again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.config import OutputKind
from pipeline.config.checks import nearest
from pipeline.errors import ConfigError, ReleaseError
from pipeline.topology.outputs import Output, outputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.config import AppConfig
    from pipeline.hosting.application import Application
    from pipeline.topology.topology import Topology


def outputs(application: Application) -> dict[str, Output]:
    """Return the outputs of a version by topic: what `streams.toml` says of them, or else what its topology does."""
    return _declared(application.config, application.topology)


def tables(application: Application) -> list[str]:
    """Return the topics of a version that are tables, sorted."""
    return [topic for topic, output in outputs(application).items() if output.kind is OutputKind.TABLE]


def require_same_kinds(one: Application, other: Application) -> None:
    """Make sure that two versions mean the same by the records of each topic that both write.

    Raises:
        ReleaseError: If they do not: what the one has published could not be corrected, or would be sent again.
    """
    theirs = outputs(other)
    for topic, mine in outputs(one).items():
        other_kind = theirs.get(topic, mine)
        if other_kind.kind is not mine.kind:
            message = (
                f"{one.config.name}: {topic} is a {mine.kind.value} in {one.version} ({mine.why})"
                f" and a {other_kind.kind.value} in {other.version} ({other_kind.why})"
            )
            hint = f'Say what it is: [apps.{one.config.name}.outputs] "{topic}" = "table" or "log".'
            raise ReleaseError(message, hint=hint)


def require_known(config: AppConfig, topologies: Iterable[Topology]) -> None:
    """Make sure that some version writes each topic of which `streams.toml` says what it is.

    Raises:
        ConfigError: If none does.
    """
    written: set[str] = set()
    for topology in topologies:
        if config.outputs.keys() <= written:
            return
        written.update(topology.sink_topics)
    unknown = config.outputs.keys() - written
    if not unknown:
        return
    topic = min(unknown)
    message = f"apps.{config.name}.outputs.{topic}: no version of {config.name} writes to such a topic"
    raise ConfigError(message, hint=nearest(topic, written))


def _declared(config: AppConfig, topology: Topology) -> dict[str, Output]:
    found = outputs_of(topology)
    given = {topic: kind for topic, kind in config.outputs.items() if topic in found}
    return found | {topic: Output(topic, kind, "streams.toml says so") for topic, kind in given.items()}
