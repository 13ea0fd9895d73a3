"""The plan of a joint release: its members in the order of the flow, and what they read of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import ConfigError, ReleaseError
from riverrun.hosting.release import named_versions, staging_name
from riverrun.project.graph import ReaderKind
from riverrun.project.members import graph_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config import ProjectConfig
    from riverrun.kafka.door import Kafka
    from riverrun.project.graph import Member, ProjectGraph, Read
    from riverrun.releases.release_plan import ReleasePlan

_ALONE = "Release it alone, or let it read and write other topics."


@dataclass(frozen=True, slots=True)
class JointPlan:
    """The work of a joint release, before anything is done.

    Args:
        members: The candidates by application, in the order in which they are computed.
        live: The live versions by application.
        inputs: By application and version, the staging topics that it reads while it is not live, by public topic.
        read: The topics that others of the release read, by the application that writes them.
        plans: The plan of each application; of what others of the release write, offsets of now count.
        readers: Members of the project that read what is corrected, and are no part of the release, by topic.
        unknown: Applications and declarations of which nothing is known, with the reason.
    """

    members: Mapping[str, str]
    live: Mapping[str, str]
    inputs: Mapping[str, Mapping[str, Mapping[str, str]]]
    read: Mapping[str, tuple[str, ...]]
    plans: Mapping[str, ReleasePlan] = field(default_factory=dict)
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"joint release of {named_versions(self.members)}, in this order:"]
        for app, version in self.members.items():
            topics = self.inputs[app].get(version) or {}
            lines.append(f"  {app}: {version} in place of {self.live[app]}")
            lines += [f"    reads {name} in place of {topic} until the cut" for topic, name in topics.items()]
            lines += [f"  {line}" for line in str(self.plans[app]).splitlines()[1:]]
        for topic, readers in self.readers.items():
            lines.append(f"  corrections of {topic} also reach {', '.join(readers)}")
        lines += [f"  not known: {name}: {why}" for name, why in self.unknown.items()]
        return "\n".join(lines)


def plan_joint(
    project: ProjectConfig, members: Mapping[str, str], live: Mapping[str, str], kafka: Kafka | None = None
) -> JointPlan:
    """Return the plan, without the plans of the applications; refuse what cannot be released together."""
    if len(members) < 2:  # noqa: PLR2004 - as below
        raise ConfigError("A joint release has two applications or more", hint="For example orders=v2 totals=v2.")
    sides = {
        "live": graph_of(project, {**live}, kafka),
        "candidate": graph_of(project, {**live, **members}, kafka),
    }
    after: dict[str, set[str]] = {app: set() for app in members}
    read: dict[str, set[str]] = {app: set() for app in members}
    inputs: dict[str, dict[str, dict[str, str]]] = {app: {} for app in members}
    written = {
        edge.topic for graph in sides.values() for app in members for edge in graph.writes_of(_known(graph, app))
    }
    for graph in sides.values():
        for app in members:
            member = _known(graph, app)
            writers = {
                edge.topic: _writer(graph, edge, members) for edge in graph.reads_of(member) if edge.topic in written
            }
            after[app] |= {*writers.values()}
            for topic, writer in writers.items():
                read[writer].add(topic)
            inputs[app][member.version] = {
                topic: staging_name(project.app(writer).application_id(_known(graph, writer).version), topic)
                for topic, writer in sorted(writers.items())
            }
    ordered = _ordered(after)
    graph = sides["candidate"]
    edges = (edge for app in members for edge in graph.writes_of(_known(graph, app)))
    corrected = {edge.topic for edge in edges if edge.kind is OutputKind.TABLE}
    outside = {
        topic: tuple(
            dict.fromkeys(str(each.reader) for each in graph.readers(topic) if each.reader.name not in members)
        )
        for topic in sorted(corrected)
    }
    return JointPlan(
        members={app: members[app] for app in ordered},
        live={app: live[app] for app in ordered},
        inputs=inputs,
        read={app: tuple(sorted(read[app])) for app in ordered},
        readers={topic: readers for topic, readers in outside.items() if readers},
        unknown=graph.unknown,
    )


def _known(graph: ProjectGraph, app: str) -> Member:
    found = graph.application(app)
    if found is None:
        raise ConfigError(f"{app} cannot be loaded: {graph.unknown.get(app, 'unknown')}")
    return found


def _writer(graph: ProjectGraph, edge: Read, members: Mapping[str, str]) -> str:
    """Return the application of the release that writes what another one reads; refuse what cannot be followed."""
    who = f"{edge.reader} {edge.reader.version}"
    if edge.kind is ReaderKind.GLOBAL_TABLE or edge.pattern is not None:
        how = "as a global table" if edge.pattern is None else f"by the pattern {edge.pattern.pattern}"
        raise ReleaseError(f"{who} reads {edge.topic} {how}: it cannot be in a joint release", hint=_ALONE)
    writers = dict.fromkeys(each.writer for each in graph.writers(edge.topic))
    others = [str(each) for each in writers if not each.is_application or each.name not in members]
    if others:
        message = f"{edge.topic}, which {who} reads, is also written by {', '.join(others)}"
        raise ReleaseError(message, hint="Name it as well, if it is an application.")
    if not writers:
        message = (
            f"{who} reads {edge.topic}, which no application of the release writes in the version that goes with it"
        )
        raise ReleaseError(message, hint="Both versions of a reader need the topic from their own side of the release.")
    if len(writers) > 1:
        raise ReleaseError(f"{edge.topic}, which {who} reads, has several writers: {', '.join(map(str, writers))}")
    return next(iter(writers)).name


def _ordered(after: Mapping[str, set[str]]) -> tuple[str, ...]:
    try:
        return tuple(TopologicalSorter({app: sorted(above) for app, above in after.items()}).static_order())
    except CycleError as error:
        message = f"Records return to applications that have written them: {', '.join(dict.fromkeys(error.args[1]))}"
        raise ReleaseError(
            message, hint="A joint release takes one application after the other. Leave some out."
        ) from None
