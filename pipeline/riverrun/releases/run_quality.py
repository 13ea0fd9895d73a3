"""Judges one bounded run before its outputs are public: the records it read and dropped, the rows it changed, its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.config import OutputKind
from riverrun.hosting.progress import counted_rows
from riverrun.hosting.release import staging_name
from riverrun.kafka.ranges import read_fields
from riverrun.quality.expectations import INPUT, by_topic, checks_of, declared
from riverrun.quality.frames import passing_frame
from riverrun.quality.gate import INFO, GateReport, Verdict, judge
from riverrun.records import OffsetRange, TopicPartition, counted
from riverrun.releases.corrections import published_name
from riverrun.releases.differ import Differ
from riverrun.releases.gating import judge_insides
from riverrun.releases.rows import KEY_COLUMNS, difference_rows, log_rows, table_rows
from riverrun.releases.topology import outputs
from riverrun.topology.nodes import SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.quality.expectations import Expectations
    from riverrun.quality.frames import Statistics
    from riverrun.topology.nodes import SinkNode

_FRAMES = "gate"


class RunGate:
    """Judges runs of a version that writes to its staging topics."""

    def __init__(
        self,
        connected: ConnectedApplication,
        spark: Callable[[], Any],
        check: str,
        earlier: Mapping[str, Sequence[Statistics]],
    ) -> None:
        config = connected.application.config
        where = str(config.quality or "")
        self._checks = checks_of(where, declared(config.quality), connected.topology)
        self._connected = connected
        self._admin = connected.admin
        self._spark = spark
        self._report = GateReport.of(config, check, self._checks.actions, earlier)
        self._directory = connected.application.directory / _FRAMES
        kinds = outputs(connected.application)
        self._logs = {topic for topic, output in kinds.items() if output.kind is OutputKind.LOG}
        self._wanted = by_topic(where, self._checks.outputs, kinds, self._logs)

    def judge(
        self, ranges: Mapping[TopicPartition, OffsetRange], published: Mapping[str, int], since_ms: int
    ) -> Verdict:
        """Judge a run that began at `since_ms` by the input ranges that it has read, and the records not in `published` yet."""
        found = self._of_inputs(ranges)
        for topic, expectations in self._wanted.items():
            sink = self._connected.topology.sink_of(topic)
            if sink is not None:
                is_log = topic in self._logs
                found += (
                    self._of_log(sink, topic, expectations, published)
                    if is_log
                    else self._of_table(sink, topic, expectations)
                )
        return found + judge_insides(
            self._connected, self._checks, self._directory, self._spark, self._report, since_ms
        )

    def _of_inputs(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Verdict:
        found, topology = Verdict({}), self._connected.resolved().topology
        sources = [node for node in topology.nodes.values() if isinstance(node, SourceNode)]
        for topic, expectations in self._checks.inputs.items():
            source = next((node for node in sources if topic in node.topics), None)
            if source is None:
                found += Verdict(
                    {f"{INPUT}{topic}: it has rows": "noted: nothing was judged, as there is no such topic"}
                )
            else:
                own = {tp: wanted for tp, wanted in ranges.items() if tp.topic == topic}
                rows = log_rows(read_fields(self._admin, own), source)
                found += self._judged(f"{INPUT}{topic}", rows, expectations, "_")
        return found

    def _of_log(self, sink: SinkNode, topic: str, expectations: Expectations, published: Mapping[str, int]) -> Verdict:
        staging = staging_name(self._connected.id, topic)
        found = self._admin.topics([staging])[staging]
        ends = self._admin.stable_end_offsets(TopicPartition(staging, n) for n in range(found.partitions))
        first = self._admin.beginning_offsets(ends)
        starts = {tp: max(first[tp], published.get(published_name(found.id, tp), 0)) for tp in ends}
        ranges = {tp: OffsetRange(min(starts[tp], end), end) for tp, end in ends.items()}
        return self._judged(topic, log_rows(read_fields(self._admin, ranges), sink), expectations.table, "_")

    def _of_table(self, sink: SinkNode, topic: str, expectations: Expectations) -> Verdict:
        with Differ.of(self._connected, topic) as differ:
            differ.advance(*differ.stable_ends())
            verdict = self._judged(topic, table_rows(differ.differences(), sink, topic), expectations.table, "_")
            if not expectations.difference:
                return verdict
            unreadable: list[None] = []
            rows = difference_rows(differ.differences(), sink, sink, differ.topics, lambda: unreadable.append(None))
            name = f"{topic}, difference"
            verdict += self._judged(name, rows, expectations.difference, "")
        if unreadable:
            verdict += Verdict({f"{name}: old rows": f"noted: {counted(len(unreadable), 'row')} cannot be read"})
        return verdict

    def _judged(
        self, name: str, rows: Iterable[Mapping[str, Any]], expectations: Iterable[Any], prefix: str
    ) -> Verdict:
        judged = list(expectations)
        with passing_frame(self._directory, counted_rows(f"judge {name}", rows)) as frame:
            keys = [prefix + column for column in KEY_COLUMNS if prefix + column in frame.columns]
            # An empty frame is no failure: not every run changes every output.
            return judge(name, frame, judged, self._spark, keys=keys, if_empty=INFO, report=self._report)
