"""The plan of an environment: its members in the order of the flow, their topics, and the records to process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import ConfigError, ReleaseError, TopicError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.earlier_records import with_archive
from riverrun.kafka.admin import TopicSpec
from riverrun.processor.handlers import may_keep_letters
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.graph import ReaderKind
from riverrun.project.members import graph_of
from riverrun.records import OffsetVector, TopicPartition, counted, is_legal_topic
from riverrun.releases.thinned_inputs import thinned_inputs
from riverrun.releases.topology import load_application
from riverrun.releases.versions import SETTINGS
from riverrun.runtime.layout import ENVIRONMENTS, environment_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.config import AppConfig, ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.graph import Member, ProjectGraph, Write

_LETTERS = "dead-letters"
_LONGEST = 40
"""Most characters of the name of an environment."""


@dataclass(frozen=True, slots=True)
class EnvironmentMember:
    """An application in an environment.

    Args:
        version: The version whose code computes it.
        live: The version that is live.
        application: The application that reads and writes topics of the environment.
        reads: Topics of other members that it reads.
        is_named: Whether it was named; otherwise it follows from others.
    """

    app: str
    version: str
    live: str
    application: Application = field(repr=False)
    reads: tuple[str, ...] = ()
    is_named: bool = False

    @property
    def public(self) -> Mapping[str, str]:
        """The public topic by each topic of the environment."""
        return {name: topic for topic, name in (self.application.config.elsewhere or {}).items()}

    def connected(self, admin: Admin) -> ConnectedApplication:
        """Return it on brokers, with the topics that its patterns match now."""
        found = with_archive(admin, self.application.config.streams.archive_url)
        return ConnectedApplication(self.application, found).resolved()

    def __str__(self) -> str:
        version = self.version if self.version == self.live else f"{self.version} ({self.live} is live)"
        why = "named" if self.is_named else f"reads {', '.join(self.reads)}"
        return f"{self.app} {version}: {why}; state and group {self.application.id}"


@dataclass(frozen=True, slots=True)
class EnvironmentTopic:
    """A topic of an environment.

    Args:
        public: The topic in whose place it stands; empty for dead letters whose topics handlers choose.
        is_whole: Whether it keeps every record; else the last one of each key.
    """

    name: str
    public: str
    partitions: int
    is_whole: bool

    @property
    def spec(self) -> TopicSpec:
        """The topic to create."""
        return TopicSpec(self.name, self.partitions, SETTINGS[OutputKind.LOG if self.is_whole else OutputKind.TABLE])

    def __str__(self) -> str:
        kept = "every record" if self.is_whole else "the last record of each key"
        return f"{self.name}: {counted(self.partitions, 'partition')}; keeps {kept} until it is dropped"


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """The work on an environment, before anything is done.

    Args:
        members: Its members, in the order in which they are computed.
        topics: Its topics.
        vector: The offsets of external inputs up to which members process.
        offsets: The number of offsets of external inputs that are left to process: an upper bound of records.
        size: The bytes that the public topics take up that these stand for; None if brokers do not say.
        lost: Records that brokers no longer have, as text.
        others: Members of the project that read what changes, and are no part of it.
        unknown: Applications and declarations of which nothing is known, with the reason.
        left_out: Applications that would follow, and were left out.
    """

    name: str
    members: tuple[EnvironmentMember, ...]
    topics: tuple[EnvironmentTopic, ...]
    vector: OffsetVector
    offsets: int
    size: int | None = None
    lost: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def require_whole(self) -> None:
        """Make sure that brokers still have all records of the inputs."""
        if self.lost:
            message = f"Environment {self.name} would lack records: {'; '.join(self.lost)}"
            hint = f"riverrun env create {self.name} with --allow-lost computes it from the records that are left."
            raise ReleaseError(message, hint=hint)

    def __str__(self) -> str:
        """Describe it line by line."""
        parts = [f"environment {self.name}", "members, in this order:", *(f"  {each}" for each in self.members)]
        parts += ["topics:", *(f"  {each}" for each in self.topics)]
        parts.append(f"processes {counted(self.offsets, 'offset')} of external inputs, and what follows from them")
        parts.append(f"up to {self.vector}")
        if self.size is not None:
            parts.append(f"the public topics that these stand for take up {self.size} bytes")
        for title, told in (
            ("lost", self.lost),
            ("left out", self.left_out),
            ("no part of it", self.others),
            ("not known", [f"{name}: {why}" for name, why in self.unknown.items()]),
        ):
            parts += [f"{title}:", *(f"  {each}" for each in told)] if told else []
        return "\n".join(parts)


@dataclass(frozen=True)
class EnvironmentPlanner:
    """Plans an environment. It changes nothing.

    Args:
        versions: Versions of applications by name, in place of those that are live.
        named: The applications that were named.
        without: Applications that are left out.
    """

    cluster: ProjectCluster
    project: ProjectConfig
    name: str
    versions: Mapping[str, str]
    named: Collection[str]
    without: Collection[str] = ()

    def plan(self, vector: OffsetVector | None = None) -> EnvironmentPlan:
        """Return the plan, up to a vector; None for where the live versions stand now."""
        for app, version in self.versions.items():
            self.project.app(app).topology_of(version)
        live = {app: ChosenVersion(self.cluster, self.project, app).version for app in self.project.apps}
        graph = graph_of(self.project, {**live, **self.versions}, self.cluster.kafka)
        chosen = self._in_order(graph)
        self._require_topics_of_members(graph, chosen)
        elsewhere = self._elsewhere(graph, chosen)
        members = tuple(self._member(graph, each, live[each.name], elsewhere) for each in chosen)
        topics = tuple(self._topics(graph, members, chosen))
        connected = [each.connected(self.cluster.admin) for each in members]
        wanted = self._vector(members, connected) if vector is None else vector
        below = tuple(each for each in self._below(graph, chosen) if each not in chosen)
        return EnvironmentPlan(
            name=self.name,
            members=members,
            topics=topics,
            vector=wanted,
            offsets=self._offsets(connected, wanted),
            size=self._size(topics),
            lost=tuple(dict.fromkeys(lost for each in connected for lost in self._lost(each, wanted))),
            others=tuple(f"{each} reads public topics alone" for each in below if not each.is_application),
            unknown=graph.unknown,
            left_out=tuple(each.name for each in below if each.is_application),
        )

    # Members

    def _in_order(self, graph: ProjectGraph) -> tuple[Member, ...]:
        """Return the applications that take part, each after those that it reads from."""
        first = [self._known(graph, name) for name in self.named]
        everything = self._followed(graph, first, ())
        self._require_needed(first, everything)
        chosen = self._followed(graph, first, self.without)
        inner = {edge.topic for member in chosen for edge in graph.writes_of(member) if edge.is_known}
        flow = graph.part(chosen, inner)
        if back := flow.returning():
            named = ", ".join(map(str, back))
            message = f"Environment {self.name}: records return to applications that have written them: {named}"
            raise ReleaseError(message, hint="An environment computes one application after the other. Leave some out.")
        return flow.ordered()

    def _known(self, graph: ProjectGraph, name: str) -> Member:
        self.project.app(name)
        found = graph.application(name)
        if found is None:
            raise ConfigError(f"{name} cannot be loaded: {graph.unknown.get(name, 'unknown')}")
        return found

    def _followed(self, graph: ProjectGraph, first: Sequence[Member], without: Collection[str]) -> list[Member]:
        found, waiting = dict.fromkeys(first), [*first]
        while waiting:
            for each in graph.after(waiting.pop()):
                if each.is_application and each not in found and each.name not in without:
                    found[each] = None
                    waiting.append(each)
        return [*found]

    def _below(self, graph: ProjectGraph, chosen: Sequence[Member]) -> tuple[Member, ...]:
        return tuple(dict.fromkeys(each for member in chosen for each in graph.after(member)))

    def _require_needed(self, first: Sequence[Member], everything: Sequence[Member]) -> None:
        follow = [each.name for each in everything if each not in first]
        needless = next((name for name in self.without if name not in follow), None)
        if needless is not None:
            message = f"{needless} need not be left out: it does not follow from {', '.join(self.named)}"
            raise ConfigError(message, hint=f"Applications that follow: {', '.join(follow) or 'none'}.")

    def _require_topics_of_members(self, graph: ProjectGraph, chosen: Sequence[Member]) -> None:
        """Refuse topics that are not known, and those that others write as well: their records cannot be told apart."""
        read = {edge.topic for member in chosen for edge in graph.reads_of(member)}
        for member in chosen:
            for edge in graph.writes_of(member):
                if not edge.is_known:
                    message = f"{member} {member.version} chooses topics per record ({edge.node})"
                    hint = f"Name the topics: `split()`, and one `to(topic)` per branch; or leave {member} out."
                    raise ReleaseError(f"{message}: it cannot be in an environment", hint=hint)
                other = next((each.writer for each in graph.writers(edge.topic) if each.writer not in chosen), None)
                if edge.topic in read and other is not None:
                    message = f"{edge.topic} is written by {member}, and by {other}, which is no part of {self.name}"
                    raise ReleaseError(message, hint=f"Name {other} as well, if it is an application: --from {other}")

    def _elsewhere(self, graph: ProjectGraph, chosen: Sequence[Member]) -> dict[str, str]:
        written = {edge.topic for member in chosen for edge in graph.writes_of(member) if edge.is_known}
        found = {topic: environment_name(self.name, topic) for topic in sorted(written)}
        if too_long := [name for name in found.values() if not is_legal_topic(name)]:
            message = f"{too_long[0]} is longer than names of topics may be"
            raise ConfigError(message, hint="Choose a shorter name for the environment.")
        return found

    def _member(
        self, graph: ProjectGraph, member: Member, live: str, elsewhere: Mapping[str, str]
    ) -> EnvironmentMember:
        config = _config_of(self.name, self.project.app(member.name), member.version, elsewhere)
        project = replace(self.project, apps={config.name: config}, refused={})
        application = load_application(project, config.name, version=member.version, kafka=self.cluster.kafka)
        if may_keep_letters(config.streams):
            letters = config.streams.errors_dead_letter_queue_topic_name or environment_name(self.name, _LETTERS)
            application = replace(application, dead_letters=letters)
        reads = dict.fromkeys(edge.topic for edge in graph.reads_of(member) if edge.topic in elsewhere)
        return EnvironmentMember(
            member.name, member.version, live, application, tuple(reads), member.name in self.named
        )

    # Topics

    def _topics(
        self, graph: ProjectGraph, members: Sequence[EnvironmentMember], chosen: Sequence[Member]
    ) -> Iterator[EnvironmentTopic]:
        written: dict[str, list[Write]] = {}
        for member in chosen:
            for edge in graph.writes_of(member):
                written.setdefault(edge.topic, []).append(edge)
        admin = self.cluster.admin
        admin.require(written, f"members of environment {self.name} write to")
        counts = admin.partitions(written)
        # A table has changed meanwhile for those that join it or count its updates. A global table is read as it is.
        read = {
            edge.topic for each in chosen for edge in graph.reads_of(each) if edge.kind is not ReaderKind.GLOBAL_TABLE
        }
        for topic, edges in sorted(written.items()):
            is_table = all(edge.kind is OutputKind.TABLE for edge in edges) and topic not in read
            yield EnvironmentTopic(environment_name(self.name, topic), topic, counts[topic], not is_table)
        letters = environment_name(self.name, _LETTERS)
        if any(each.application.dead_letters == letters for each in members) and _LETTERS not in written:
            yield EnvironmentTopic(letters, "", 1, is_whole=True)

    def _size(self, topics: Sequence[EnvironmentTopic]) -> int | None:
        found = self.cluster.admin.log_sizes([each.public for each in topics if each.public])
        # A user of topics may lack the right to ask.
        return sum(found.values()) if found else None

    # Offsets

    def _vector(self, members: Sequence[EnvironmentMember], connected: Sequence[ConnectedApplication]) -> OffsetVector:
        """Return the furthest offset that a live member has processed of each external input; its end if none has begun."""
        found: dict[TopicPartition, int] = {}
        everything: set[TopicPartition] = set()
        for member, each in zip(members, connected, strict=True):
            tps = self._external(each)
            everything |= {*tps}
            for tp, offset in self._processed(member, tps).items():
                found[tp] = max(offset, found.get(tp, 0))
        unread = everything - found.keys()
        return OffsetVector({**found, **self.cluster.admin.stable_end_offsets(unread)})

    def _processed(self, member: EnvironmentMember, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what the live version of a member has processed of some partitions; empty if it has not begun."""
        live = ChosenVersion(self.cluster, self.project, member.app, member.live).connected().resolved()
        read = [tp for tp in tps if tp.topic in live.topology.source_topics]
        known = live.committed(read)
        return {tp: known[tp].offset if tp in known else 0 for tp in read} if known else {}

    def _external(self, connected: ConnectedApplication) -> list[TopicPartition]:
        own = environment_name(self.name, "")
        topics = [topic for topic in connected.topology.source_topics if not topic.startswith(own)]
        return partitions_of(connected.admin, topics)

    def _offsets(self, connected: Iterable[ConnectedApplication], vector: OffsetVector) -> int:
        total = 0
        for each in connected:
            tps = self._external(each)
            starts = starts_of(each, tps)
            total += sum(max(0, vector.offsets.get(tp, 0) - starts[tp]) for tp in tps)
        return total

    def _lost(self, connected: ConnectedApplication, vector: OffsetVector) -> Iterator[str]:
        tps = self._external(connected)
        known = connected.committed(tps)
        for tp, start in sorted(connected.admin.beginning_offsets(tps).items()):
            # What was processed before is in the state, wherever the topic begins by now.
            following = known[tp].offset if tp in known else 0
            if min(start, vector.offsets.get(tp, start)) > following:
                yield f"{tp} begins at offset {start}" + (f", and {following} is to follow" if following else "")
        unread = [tp for tp in tps if tp not in known]
        thinned = thinned_inputs(connected.admin, connected.topology, {tp.topic for tp in unread})
        yield from (f"{topic} is compacted, and aggregated as a stream" for topic in thinned)


def partitions_of(admin: Admin, topics: Iterable[str]) -> list[TopicPartition]:
    """Return all partitions of topics, which must exist."""
    wanted = [*topics]
    counts = admin.partitions(wanted)
    if missing := sorted({*wanted} - counts.keys()):
        message = f"Topics do not exist: {', '.join(missing)}"
        raise TopicError(message, hint="Create them, or leave out the applications that read them.")
    return [TopicPartition(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]


def starts_of(connected: ConnectedApplication, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where a member of an environment reads next: where it stands, or the first record."""
    known = connected.committed(tps)
    first = connected.admin.beginning_offsets(tp for tp in tps if tp not in known)
    return first | {tp: committed.offset for tp, committed in known.items()}


def _config_of(name: str, config: AppConfig, version: str, elsewhere: Mapping[str, str]) -> AppConfig:
    """Return the application in an environment: its ids are of the environment, and nothing of it leaves it."""
    streams = config.streams
    letters = streams.errors_dead_letter_queue_topic_name
    own = None if letters is None else elsewhere.get(letters, environment_name(name, letters))
    return replace(
        config,
        name=environment_name(name, config.name),
        topology=config.topology_of(version),
        version=version,
        versions={},
        quality=None,
        gate=False,
        carry={},
        outputs={elsewhere.get(topic, topic): kind for topic, kind in config.outputs.items()},
        streams=replace(streams, snapshot_url="", errors_dead_letter_queue_topic_name=own),
        elsewhere=elsewhere,
    )


def require_name(project: ProjectConfig, name: str) -> None:
    """Make sure that an environment may have a name, and that nothing else has names as those of environments."""
    if not (0 < len(name) <= _LONGEST and all(each.isascii() and (each.isalnum() or each == "-") for each in name)):
        message = f"An environment cannot have the name {name[:100]!r}"
        raise ConfigError(message, hint=f"Names have 1 to {_LONGEST} letters, digits and hyphens: dev-anna.")
    taken = [each for each in (*project.apps, *project.refused) if each.startswith(ENVIRONMENTS)]
    if taken:
        message = f"Application {taken[0]} is named like those of environments"
        raise ConfigError(message, hint=f"Choose a name that does not begin with {ENVIRONMENTS}")
