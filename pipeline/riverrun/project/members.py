"""Makes the graph of a project: from the topologies of its applications, and from what its sections declare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config.links import Links
from riverrun.errors import USER_ERRORS, ConfigError, StreamsError, as_exception
from riverrun.project.flows import Flows
from riverrun.project.graph import Arrival, Flow, Member, ProjectGraph, Read, ReaderKind, Step, Use, Write
from riverrun.releases.topology import load_application, outputs
from riverrun.topology.nodes import SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.kafka.door import Kafka
    from riverrun.topology.topology import Topology

_EXPORT = "export"


def graph_of(
    project: ProjectConfig,
    versions: Mapping[str, str] | None = None,
    kafka: Kafka | None = None,
    loaded: Mapping[str, Application] | None = None,
) -> ProjectGraph:
    """Return the graph of a project. It asks no broker.

    Args:
        project: The project.
        versions: Versions of applications by name; by default those that `streams.toml` lets go live first.
        kafka: The project's brokers, for applications that keep them.
        loaded: Applications by name that are loaded already: to load one again would run a user's code again.
    """
    unknown = {name: refused.error.message for name, refused in project.refused.items()}
    members, reads, writes = [], list[Read](), list[Write]()
    for name in project.apps:
        try:
            application = (loaded or {}).get(name) or load_application(
                project, name, version=(versions or {}).get(name), kafka=kafka
            )
            member = Member(name, version=application.version)
            read, written = [*_reads_of(member, application.topology)], [*_writes_of(member, application)]
        except StreamsError as error:
            unknown[name] = error.message
        # A part of a topology may be a user's code, and one application must not hide the others.
        except USER_ERRORS as error:
            unknown[name] = f"{type(error).__name__}: {as_exception(error)}"
        else:
            members.append(member)
            reads += read
            writes += written
    for member, declared in _declared(project):
        if isinstance(declared, ConfigError):
            unknown[str(member)] = declared.message
            continue
        members.append(member)
        reads += _declared_reads(member, declared)
        writes += _declared_writes(member, declared)
    ids = {app.application_id(v): app.name for app in project.apps.values() for v in (app.version, *app.versions)}
    return ProjectGraph(tuple(members), tuple(_with_matches(reads, writes)), tuple(writes), unknown, ids)


def _reads_of(member: Member, topology: Topology) -> Iterator[Read]:
    flows = Flows(topology, _chosen(member))
    tables = {topic for sub in topology.sub_topologies() for topic in sub.table_sources}
    tables |= {store.source_topic for store in topology.stores.values() if store.source_topic is not None}
    for node in topology.nodes.values():
        if not isinstance(node, SourceNode) or topology.repartition_topics.keys() & node.topics:
            continue
        rows, records = flows.of_source(node, Arrival.KEYED), flows.of_source(node, Arrival.FURTHER)
        if node.pattern is not None:
            topic = f"topics that match {node.pattern.pattern}"
            named = Read(member, topic, ReaderKind.STREAM, node.name, rows=rows, records=records)
            yield replace(named, is_known=False, pattern=node.pattern)
        for topic in node.topics:
            kind = ReaderKind.TABLE if topic in tables else ReaderKind.STREAM
            yield Read(member, topic, kind, node.name, rows=rows, records=records)
    for store in topology.global_stores:
        flow = flows.of_global(store)
        for topic in store.source.topics:
            yield Read(member, topic, ReaderKind.GLOBAL_TABLE, store.source.name, rows=flow, records=flow)


def _writes_of(member: Member, application: Application) -> Iterator[Write]:
    topology = application.topology
    sinks = {node.topic: node.name for node in topology.nodes.values() if isinstance(node, SinkNode)}
    for topic, output in outputs(application).items():
        yield Write(member, topic, sinks[topic], output.kind, output.why)
    if topology.choosing_sinks:
        yield Write(member, _chosen(member), ", ".join(topology.choosing_sinks), is_known=False)
    letters = application.config.streams.errors_dead_letter_queue_topic_name
    if letters:
        yield Write(member, letters, is_letters=True)


def _chosen(member: Member) -> str:
    return f"topics that {member} chooses"


def _declared(project: ProjectConfig) -> Iterator[tuple[Member, Links | ConfigError]]:
    """Return what sections declare that reads or writes topics, and declarations with an error."""
    for section, tables in project.sections.items():
        for name, declared in tables.items():
            links = declared if isinstance(declared, ConfigError) else getattr(declared, "links", None)
            if isinstance(links, Links | ConfigError):
                yield Member(name, section.removesuffix("s")), links


def _declared_reads(member: Member, links: Links) -> Iterator[Read]:
    known = ReaderKind.TABLE if links.keeps_rows else ReaderKind.STREAM
    kind = known if links.is_known else None
    steps: tuple[Step, ...] = ()
    if not links.is_known:
        steps = (Step(str(member), Use.UNKNOWN),)
    elif not links.keeps_rows and member.kind == _EXPORT:
        steps = (Step(str(member), Use.ADDS),)
    written = {topic: frozenset(Arrival) for topic in links.writes}
    further = (Step(str(member), Use.REKEYS),) if links.keeps_rows else steps
    for topic in links.reads:
        yield Read(member, topic, kind, rows=Flow(steps, written), records=Flow(further, written))


def _declared_writes(member: Member, links: Links) -> Iterator[Write]:
    yield from (Write(member, topic, has_keys=links.writes_keys) for topic in links.writes)
    if links.letters:
        yield Write(member, links.letters, is_letters=True)


def _with_matches(reads: Iterable[Read], writes: Iterable[Write]) -> Iterator[Read]:
    """Return the edges, with those that patterns of readers have to topics that the project writes."""
    written = sorted({edge.topic for edge in writes if edge.is_known})
    for edge in reads:
        yield edge
        if edge.pattern is not None:
            matching = (each for each in written if edge.pattern.fullmatch(each))
            yield from (replace(edge, topic=each, is_known=True) for each in matching)
