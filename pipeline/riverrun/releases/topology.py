"""Applications with the topology of a version, and kinds of its outputs: a release corrects tables, and repeats no log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.config import OutputKind, call_attribute, load_attribute
from riverrun.config.checks import nearest, read_text
from riverrun.dsl.builder import StreamsBuilder
from riverrun.errors import ConfigError, ReleaseError, TopologyError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.runtime.layout import ENVIRONMENTS
from riverrun.runtime.serde_places import with_places
from riverrun.topology.nodes import SinkNode
from riverrun.topology.outputs import Output, outputs_of
from riverrun.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.config import AppConfig, ProjectConfig, TopologyLoader

_WINDOWED = frozenset({"windowed", "session_windowed"})
# First words of the names of Riverrun's own serdes, without `bytes`, which may hold any of these forms.
_FORMS = _WINDOWED | {
    "short",
    "integer",
    "long",
    "float",
    "double",
    "boolean",
    "string",
    "json",
    "avro",
    "json_schema",
    "protobuf",
}


class VersionedJob(Protocol):
    """Names the topology to build: a `Job` of a bounded run, or a `StreamJob` of a worker."""

    @property
    def config(self) -> AppConfig:
        """The application."""

    @property
    def version(self) -> str:
        """The version of the application."""


def build_topology(job: VersionedJob) -> Topology:
    """Return the topology of a job's application and version.

    Programs hand this function to hosts, which know neither the DSL nor SQL: their processes call it where they run.
    """
    return _topology_of(job.config, job.version)


def load_application(
    project: ProjectConfig, name: str, *, version: str | None = None, kafka: Kafka | None = None
) -> Application:
    """Load an application with its topology, in the configured version by default. It publishes unless given staging topics.

    `kafka` defaults to the project's brokers.
    """
    config, kafka = project.app(name), kafka or Kafka(project.kafka)
    chosen = version or config.version
    return Application(config, chosen, _topology_of(config, chosen), kafka, project.state_directory(config))


def _topology_of(config: AppConfig, version: str) -> Topology:
    reference, loader = config.topology_of(version), config.loader_of(version)
    builder = StreamsBuilder(config.streams.topology_config)
    topology = call_attribute(reference, builder) if loader is None else _of_file(loader, Path(str(reference)), builder)
    if not isinstance(topology, Topology):
        message = f"{reference} returned {topology!r}, not a Topology"
        raise TopologyError(message, hint="End the function with `return builder.build()`.")
    elsewhere = config.elsewhere or {}
    if config.name.startswith(ENVIRONMENTS):
        topology, elsewhere = _in_an_environment(topology, config, elsewhere), {}
    topology = with_places(topology, config.application_id(version), config.schema_registry)
    # Last: the serdes of what it reads in a staging topic are those of the public one.
    return topology.elsewhere(elsewhere) if elsewhere else topology


def _in_an_environment(topology: Topology, config: AppConfig, elsewhere: Mapping[str, str]) -> Topology:
    """Return a topology that writes to topics of its environment alone, in whichever process it is built."""
    found = topology.elsewhere(elsewhere)
    public = [*sorted({*found.sink_topics} - {*elsewhere.values()}), *found.choosing_sinks]
    if public:
        message = f"{config.name} would write to {', '.join(public)}, which is no topic of its environment"
        hint = "Its code has changed, or it chooses topics per record. `riverrun env drop` deletes the environment."
        raise ReleaseError(message, hint=hint)
    return found


def _of_file(loader: TopologyLoader, path: Path, builder: StreamsBuilder) -> Any:
    build = load_attribute(loader.build)
    try:
        text = read_text(path)
    except OSError as error:
        message = f"Topology {path} cannot be read: {error.strerror}"
        raise ConfigError(message, hint="Its path is relative to the directory of streams.toml.") from error
    return build(text, builder, file=str(path))


def outputs(application: Application) -> dict[str, Output]:
    """Return the outputs of a version by topic, as `streams.toml` declares them, or else as its topology implies."""
    return _declared(application.config, application.topology)


def tables(application: Application) -> list[str]:
    """Return the topics of a version that are tables, sorted."""
    return [topic for topic, output in outputs(application).items() if output.kind is OutputKind.TABLE]


def logs(application: Application) -> list[str]:
    """Return the topics of a version that are logs, sorted."""
    return [topic for topic, output in outputs(application).items() if output.kind is OutputKind.LOG]


def require_same_kinds(one: Application, other: Application) -> None:
    """Make sure that two versions agree, for each topic that both write, whether it is a table or a log."""
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


def require_same_keys(one: Application, other: Application) -> None:
    """Make sure that two versions encode the keys of each topic that both write in one form."""
    theirs = _key_serdes(other.topology)
    for topic, mine in _key_serdes(one.topology).items():
        if _differ(mine, theirs.get(topic, mine)):
            message = (
                f"{one.config.name}: {topic} has keys of {mine} in {one.version} and of {theirs[topic]} in {other.version}:"
                " a row of one version would never replace a row of the other"
            )
            raise ReleaseError(message, hint=f"Let {other.version} write to its own topic.")


def require_known(config: AppConfig, topologies: Iterable[Topology]) -> None:
    """Make sure that at least one version writes each topic that `streams.toml` declares as an output."""
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


def _key_serdes(topology: Topology) -> dict[str, str]:
    sinks = (node for node in topology.nodes.values() if isinstance(node, SinkNode))
    return {sink.topic: sink.key_serde.name for sink in sinks if isinstance(sink.topic, str)}


def _differ(one: str, other: str) -> bool:
    """Return whether keys of two serdes certainly differ in their bytes."""
    # Only names of Riverrun's serdes show how a key is written: classes may be renamed, and users' own serdes are trusted.
    # Sizes of windows are not compared, since the bytes do not contain them.
    (mine, my_inner), (theirs, their_inner) = _form(one), _form(other)
    if mine == theirs and mine in _WINDOWED:
        return _differ(my_inner, their_inner)
    return mine != theirs and {mine, theirs} <= _FORMS


def _form(name: str) -> tuple[str, str]:
    """Return the form that a serde writes, and the name of its inner serde; a UUID is written as text."""
    form, _, inner = name.removesuffix("]").partition("[")
    return ("string" if form == "uuid" else form), inner


def _declared(config: AppConfig, topology: Topology) -> dict[str, Output]:
    found = outputs_of(topology)
    given = {topic: kind for topic, kind in config.outputs.items() if topic in found}
    return found | {topic: Output(topic, kind, "streams.toml says so") for topic, kind in given.items()}
