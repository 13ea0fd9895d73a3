"""The part of the public tables that a repair covers: a stretch of event time, or some of its keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import ReleaseError
from riverrun.operators.aggregations import StreamWindowAggregate
from riverrun.operators.deduplication import StreamDeduplicate
from riverrun.operators.late_records import LateRecords
from riverrun.operators.sliding import StreamSlidingWindowAggregate
from riverrun.records import TopicPartition
from riverrun.releases.rows import key_of
from riverrun.releases.topology import outputs
from riverrun.serde.windowed import NO_END_MS, lacks_ends
from riverrun.spark.ranges import time_ms
from riverrun.state.api import StoreKind
from riverrun.topology.nodes import ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.hosting.application import Application
    from riverrun.releases.difference import Pair
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.outputs import Output
    from riverrun.topology.topology import Topology

_WINDOWS = frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW})
# The rows of these follow from all records before them, and from nothing else.
_REBUILT = frozenset(StoreKind) - _WINDOWS - {StoreKind.BUFFER, StoreKind.VERSIONED}
_RELEASE = "Release a new version with this code instead: it computes the table as a whole."
_OTHERS = "Or leave it out: name the other tables with --topic."
_ALL_RECORDS = "`riverrun backfill --from-beginning` computes it from all records."

# The last second of the year 9999, after which Python knows no times.
LAST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of public tables.

    Args:
        start_ms: First event time, ms since the epoch.
        end_ms: End of the event times (exclusive), ms since the epoch.
        keys: Keys as a difference shows them; all if it is empty.
        topics: Public topics; all tables if it is empty.
        from_beginning: Whether its rows may be computed from all records of the inputs, if those of its time do not suffice.
        may_be_open: Whether its windows may still be open: the live version changes them further, from its own rows.
    """

    start_ms: int
    end_ms: int
    keys: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    from_beginning: bool = False
    may_be_open: bool = False

    def __str__(self) -> str:
        start = moment_text(self.start_ms)
        keys = f", keys {', '.join(sorted(self.keys))}" if self.keys else ""
        topics = f", {', '.join(sorted(self.topics))}" if self.topics else ""
        return f"{start} {'on' if self.end_ms == LAST_MS else f'to {moment_text(self.end_ms)}'}{keys}{topics}"

    def is_about(self, topic: str, kinds: Mapping[str, Output]) -> bool:
        return kinds[topic].kind is OutputKind.TABLE and (not self.topics or topic in self.topics)

    def covers(self, sink: SinkNode, topic: str) -> Callable[[Pair], bool]:
        """Return a predicate of the rows that belong to the scope.

        A windowed row belongs to it if the whole window lies in the scope. Any other row does if the time of its public record
        or of its new record does. The predicate raises `ReleaseError` for a window whose end is not known.
        """

        def is_covered(pair: Pair) -> bool:
            key, window = key_of(TopicPartition(topic, pair.partition), sink, pair.key)
            if self.keys and str(key) not in self.keys:
                return False
            if window is not None:
                if window.end >= NO_END_MS:
                    raise _endless(topic)
                return self.start_ms <= window.start and window.end <= self.end_ms
            # Either time: a foreign record that has replaced a row has another one.
            return any(row and self.start_ms <= row.timestamp < self.end_ms for row in (pair.old, pair.new))

        return is_covered


def moment_text(time_ms: int) -> str:
    """Return a time, ms since the epoch, as text.

    >>> moment_text(1_500)
    '1970-01-01T00:00:01.500+00:00'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def scope_of(start: str, end: str, keys: Iterable[str] = (), topics: Iterable[str] = ()) -> Scope:
    """Parse a scope whose times are given as text.

    >>> print(scope_of("2013-07-01", "2013-07-02T12:00:00+02:00", keys=["JFK"]))
    2013-07-01T00:00:00.000+00:00 to 2013-07-02T10:00:00.000+00:00, keys JFK
    """
    return Scope(time_ms(start), time_ms(end), frozenset(keys), frozenset(topics))


@dataclass(frozen=True, slots=True)
class Reach:
    """Distance in time between rows of a table and the records that they are computed from.

    Args:
        kept_ms: How far before a range the records of its rows may lie, ms: all that stores keep on one way.
        grace_ms: Time after its end in which a window may change, ms; None if there are no windows.
        needs_all: Whether its rows follow from all records of the inputs.
        is_final: Whether some of its rows are written only when their window closes.
    """

    topics: tuple[str, ...]
    kept_ms: int = 0
    grace_ms: int | None = None
    needs_all: bool = False
    is_final: bool = False

    def __or__(self, other: Reach) -> Reach:
        graces = [each.grace_ms for each in (self, other) if each.grace_ms is not None]
        topics = dict.fromkeys((*self.topics, *other.topics))
        return Reach(
            tuple(topics),
            max(self.kept_ms, other.kept_ms),
            max(graces, default=None),
            self.needs_all or other.needs_all,
            self.is_final or other.is_final,
        )


def require_repairable(application: Application, scope: Scope) -> Reach:
    """Make sure that rows of a stretch of time can be computed from records of about that time alone, or from all records."""
    if scope.start_ms >= scope.end_ms:
        message = f"{application.config.name}: the range to repair is empty: {scope}"
        raise ReleaseError(message, hint="It ends before --to, and begins at --from.")
    chosen = chosen_tables(application, scope)
    if not chosen:
        message = f"{application.id} writes no table: there is nothing to repair"
        raise ReleaseError(message, hint="The records of a log cannot be taken back.")
    for topic in chosen:
        sink = application.topology.sink_of(topic)
        if sink is not None and lacks_ends(sink.key_serde):
            raise _endless(topic)
    _require_record_times(application)
    reach = Reach(())
    for topic in chosen:
        try:
            reach |= _reach(application.topology, topic, from_beginning=scope.from_beginning)
        except ReleaseError as error:
            if len(chosen) == 1:
                raise
            raise ReleaseError(error.message, hint=f"{error.hint} {_OTHERS}") from error
    return reach


def chosen_tables(application: Application, scope: Scope) -> list[str]:
    """Return the tables of a version that a scope is about, sorted."""
    known = outputs(application)
    for topic in sorted(scope.topics):
        if topic not in known or known[topic].kind is not OutputKind.TABLE:
            why = known[topic].why if topic in known else f"{application.id} does not write it"
            message = f"{topic} is not a table that can be repaired: {why}"
            raise ReleaseError(message, hint="The records of a log cannot be taken back.")
    return [topic for topic in known if scope.is_about(topic, known)]


def _endless(topic: str) -> ReleaseError:
    message = f"{topic} has windows without an end that is known: no row can be found to lie in a range of time"
    hint = "Write its keys with windowed(SERDE, SIZE). Rows of windows that never end are computed by a new version."
    return ReleaseError(message, hint=hint)


def _require_record_times(application: Application) -> None:
    """Make sure that event times are those of the records: brokers find the offset where a time begins."""
    sources = [node for node in application.topology.nodes.values() if isinstance(node, SourceNode)]
    own = [source.name for source in sources if source.timestamp_extractor is not None]
    if application.config.streams.default_timestamp_extractor == "WallclockTimestampExtractor":
        own.append("default.timestamp.extractor")
    if own:
        message = f"{own[0]} of {application.id} chooses other event times: brokers cannot find where a range begins"
        raise ReleaseError(message, hint=_RELEASE)


def _reach(topology: Topology, topic: str, *, from_beginning: bool) -> Reach:
    if topology.global_stores:
        message = f"{topic} may depend on a global table, whose rows of that time are no longer known"
        raise ReleaseError(message, hint=_RELEASE)
    reach = Reach((topic,), _kept_ms(topology, topic))
    for node in _above(topology, topic):
        if node.is_users_own:
            message = f"{topic} depends on a processor of your own, {node.name}, which may remember earlier records"
            raise ReleaseError(message, hint=_RELEASE)
        operator = node.supplier()
        if isinstance(operator, StreamDeduplicate | LateRecords):
            if not from_beginning:
                message = f"{topic} depends on {node.name}, whose choice of a record depends on all before it"
                raise ReleaseError(message, hint=f"{_RELEASE} {_ALL_RECORDS}")
            reach |= Reach((topic,), needs_all=True)
        for store in _stores_of(topology, node):
            if store.kind in _WINDOWS:
                reach |= Reach((topic,), is_final=store.emits_final)
            elif store.kind in _REBUILT and from_beginning:
                reach |= Reach((topic,), needs_all=True)
            else:
                message = f"{topic} depends on {store.name}, a {store.kind.value} store, and so on all records before"
                hint = f"{_RELEASE} {_ALL_RECORDS}" if store.kind in _REBUILT else _RELEASE
                raise ReleaseError(message, hint=hint)
        if isinstance(operator, StreamWindowAggregate | StreamSlidingWindowAggregate):
            reach |= Reach((topic,), grace_ms=operator.grace_ms)
    return reach


def _kept_ms(topology: Topology, topic: str) -> int:
    """Return how far before a topic's records those that they follow from may lie, ms: each store on the way adds to it."""
    stores = {name: found for sub in topology.sub_topologies() for name, found in sub.store_access.items()}
    kept, written = dict[str, int](), dict[str, int]()
    # Parents come before their children, and sinks before the sources of their repartition topics.
    for node in topology.nodes.values():
        internal = topology.repartition_topics.keys() & node.topics if isinstance(node, SourceNode) else ()
        before = max((*(kept[name] for name in node.parents), *(written.get(each, 0) for each in internal)), default=0)
        own = (topology.stores[name] for name in stores.get(node.name, ()))
        kept[node.name] = before + max((store.retention_ms for store in own if store.kind in _WINDOWS), default=0)
        if isinstance(node, SinkNode) and isinstance(node.topic, str):
            written[node.topic] = max(written.get(node.topic, 0), kept[node.name])
    return written.get(topic, 0)


def _above(topology: Topology, topic: str) -> Iterator[ProcessorNode]:
    """Return all processors that a topic's records pass through, including those before repartition topics."""
    sinks = [node for node in topology.nodes.values() if isinstance(node, SinkNode)]
    waiting, seen = [topic], {topic}
    while waiting:
        written = waiting.pop()
        names = {parent for sink in sinks if sink.topic == written for parent in sink.parents}
        while names:
            node = topology.nodes[names.pop()]
            if node.name in seen:
                continue
            seen.add(node.name)
            names.update(node.parents)
            if isinstance(node, ProcessorNode):
                yield node
            elif isinstance(node, SourceNode):
                found = (topology.repartition_topics.keys() & node.topics) - seen
                seen |= found
                waiting += found


def _stores_of(topology: Topology, node: ProcessorNode) -> Iterable[StoreBuilder]:
    for sub in topology.sub_topologies():
        names = sub.store_access.get(node.name, ())
        yield from (store for store in sub.stores if store.name in names)
