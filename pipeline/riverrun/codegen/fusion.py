"""Fuses a source, or an operator with state, and the operators below it into one function, without a call per hop.

The function is generated as Python source, once per task; that of a source is a loop over records. It contains the lines of
operators that have them (`riverrun.codegen.registry`), and plain sinks. It calls all other nodes: other operators with
stores, users' processors, and sinks that choose topics or partitions.

Its effect and order are those of `Task` record by record: `tests/unit/runtime/test_fusion.py` compares the two. Exceptional
records, which cannot be decoded or written, go to the plain functions, whose errors describe them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import TYPE_CHECKING, Any

from riverrun.codegen.function_writer import FunctionWriter
from riverrun.codegen.reading import RECORD, RecordVars, apart, columns, joined, unread, whole
from riverrun.errors import USER_ERRORS, as_exception
from riverrun.generated import NotGenerated, block, generated, marked
from riverrun.processor.operator import MaySchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from riverrun.codegen.function_writer import RunningNodes
    from riverrun.codegen.reading import Reading
    from riverrun.processor.operator import Forward
    from riverrun.state.api import CachedUpdate
    from riverrun.topology.nodes import SourceNode

    Loop = Callable[[Any, int, int], int]
    Flush = Callable[[Sequence[CachedUpdate], Callable[[Any], Any]], None]

# The `finally` block also runs for a record that fails, so `queue.next_offset - 1` is the offset to report.
_LOOP = """\
def run(queue, limit, last_time):
    records, decode, event_time = queue.waiting, queue.decode, queue.event_time
    topic, partition = context.topic, context.partition = queue.tp
    stream_time, partition_time = context.stream_time, queue.partition_time
    offset, skipped, popleft = -1, 0, records.popleft
    behind = []
{bound}
    count = min(limit, len(records))
    try:
        for done in range(count):
            raw = popleft()
            {stop}
            raw_key, raw_value, timestamp, offset, headers = raw
{read}
            if timestamp < 0:
                decoded = decode(raw)
                if decoded is None:
                    skipped += 1
                    continue
{again}
            if timestamp > partition_time:
                partition_time = timestamp
            context.offset, context.timestamp, context.headers = offset, timestamp, headers
            if timestamp > stream_time:
                stream_time = context.stream_time = timestamp
            elif timestamp < stream_time:
                behind.append(stream_time - timestamp)
{nodes}
        return count - skipped
    finally:
        queue.partition_time = partition_time
        if offset >= 0:
            queue.next_offset = offset + 1
        if skipped:
            context.has_skipped = True
        if behind:
            context.came_late(behind)
"""
_FORWARD = """\
def run(key, value, timestamp, headers):
{nodes}
"""
_FLUSH = """\
def run(updates, key_of):
    keys = [key_of(update[0]) for update in updates]
{places}
    for (_, new, old, timestamp, headers, place), key{each} in zip(updates, keys{all}):
        context.topic, context.partition, context.offset = place or nowhere
        context.timestamp, context.headers = timestamp, headers
{nodes}
"""
_STOP = """\
if raw[2] > last_time:
                records.appendleft(raw)
                return done - skipped"""
# A punctuator has no current record, so the place of the input is set again.
_PUNCTUATE = """\
if stream_time >= punctuations.next_due_ms:
    punctuations.fire(stream_time)
    context.topic, context.partition = queue.tp"""


@dataclass(slots=True)
class Fusion:
    """Generates the functions of one sub-topology."""

    nodes: RunningNodes
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Generated functions by node and purpose."""
    _entries: dict[str, Forward] = field(default_factory=dict)

    def loop(self, source: SourceNode, *, has_extractor: bool) -> Loop:
        tried = (
            self._written(source, each, has_extractor=has_extractor)
            for each in self._readings(source, has_extractor=has_extractor)
        )
        reading, lines, writer = next(each for each in tried if each is not None)
        if any(isinstance(operator, MaySchedule) for operator in self.nodes.operators.values()):
            lines = f"{lines}\n{_PUNCTUATE}"
        text = _LOOP.format(
            # An extractor's time is known only after the record was taken: such a loop ignores `last_time`.
            stop="" if has_extractor else _STOP,
            read=indent(reading.lines, " " * 12),
            again=indent(joined(reading.again, reading.bound), " " * 16),
            nodes=indent(lines, " " * 12),
            bound=indent(reading.bound, " " * 4),
        )
        loop: Loop = self._made(source.name, text, writer)
        return loop

    def _written(
        self, source: SourceNode, reading: Reading, *, has_extractor: bool
    ) -> tuple[Reading, str, FunctionWriter] | None:
        """Return the lines below a source and their writer; None if the row that is read is needed as a whole by all."""
        names = self._names() | reading.names
        place, given = "(topic, partition, offset)", reading.given
        writer = FunctionWriter(
            self.nodes,
            names,
            place,
            "raw_key",
            read_key=given.key,
            reads_key=reading.reads_key,
            source=None if has_extractor else source,
        )
        lines = writer.below(source.name, given)
        if given.items is None and given.columns is None:
            return reading, lines, writer
        if not writer.has_lines:
            return None
        plain = writer.calls(source.name, replace(given, value="None" if given.columns is None else "value"))
        return reading, f"{block(f'if {reading.is_plain}:', plain)}\n{block('else:', lines)}", writer

    def _readings(self, source: SourceNode, *, has_extractor: bool) -> Iterator[Reading]:
        """The ways to read a source's records, the best one first; the last one suits all nodes."""
        if not (has_extractor or self.nodes.reads_all) and self._is_only_counted(source):
            yield unread(source)
            return
        taken_apart = None if has_extractor else apart(source)
        if taken_apart is not None:
            yield taken_apart
        read = None if has_extractor else self.nodes.columns_read(source.name)
        by_column = None if read is None else columns(source, read)
        if by_column is not None:
            yield by_column
        yield whole(source, has_extractor=has_extractor)

    def forward(self, node: str) -> Forward | None:
        """Return the function by which a node forwards to its children; None if it would only call each of them."""
        writer = FunctionWriter(self.nodes, self._names())
        lines = writer.below(node, RECORD)
        if writer.only_calls:
            return None
        made: Forward = self._made(node, _FORWARD.format(nodes=indent(lines, " " * 4)), writer, "forward")
        return made

    def entry(self, node: str) -> Forward:
        """Return the function of a node and those below it, for callers outside of generated functions."""
        if node not in self._entries:
            self._bind(self._add_entry(node))
        return self._entries[node]

    def flush(self, node: str) -> Flush | None:
        """Return the function that forwards the updates held back by a cache to an operator's children, many at once.

        It finds the partitions of all windowed keys together. None if it would only call each child.
        """
        writer = FunctionWriter(self.nodes, self._names(), is_flush=True)
        lines = writer.below(node, RecordVars("key", writer.update("new", "old"), new="new"))
        if writer.only_calls:
            return None
        sinks = writer.placed
        text = _FLUSH.format(
            places="\n".join(
                f"    {name}_places = places({name}_inner, keys, partitions({name}_topic))" for name in sinks
            ),
            each="".join(f", {name}_where" for name in sinks),
            all="".join(f", {name}_places" for name in sinks),
            nodes=indent(lines, " " * 8),
        )
        made: Flush = self._made(node, text, writer, "flush")
        return made

    def _is_only_counted(self, source: SourceNode) -> bool:
        """Return whether a source's records were written by the topology itself and are only counted.

        Then values are not decoded, and each key only once. Records written by others are decoded in any case, because
        malformed ones must be reported.
        """
        nodes, below = self.nodes, self.nodes.children[source.name]
        if len(below) != 1 or source.pattern is not None or not nodes.sub.repartition_topics.issuperset(source.topics):
            return False
        operator = nodes.operators.get(below[0].name)
        try:
            return not nodes.writer_of(operator).reads_records(operator, nodes.folding)
        except NotGenerated:
            return False

    def reasons(self) -> Mapping[str, str]:
        """Return, by node name, why generated functions call a node; nodes that became lines are left out."""
        return {
            node.name: self.nodes.called[node.name] for node in self.nodes.sub.nodes if node.name in self.nodes.called
        }

    def _names(self) -> dict[str, Any]:
        return {**self.nodes.task, "user_errors": USER_ERRORS, "as_exception": as_exception}

    def _made(self, node: str, text: str, writer: FunctionWriter, purpose: str = "") -> Any:
        made = self._compiled(node, text, writer, purpose)
        self._bind(writer)
        return made

    def _bind(self, writer: FunctionWriter) -> None:
        """Make the functions that a function calls, and those that these call."""
        # No recursion: the chain may be longer than Python's stack.
        callers = [writer]
        while callers:
            caller = callers.pop()
            for called, node in caller.entered.items():
                if node not in self._entries:
                    callers.append(self._add_entry(node))
                caller.names[called] = self._entries[node]

    def _add_entry(self, node: str) -> FunctionWriter:
        writer = FunctionWriter(self.nodes, self._names())
        lines = writer.all_of(self.nodes.by_name[node], RECORD)
        made: Forward = self.nodes.inlets[node]
        if not writer.only_calls:
            made = self._compiled(node, _FORWARD.format(nodes=indent(lines, " " * 4)), writer)
        self._entries[node] = made
        return writer

    def _compiled(self, node: str, text: str, writer: FunctionWriter, purpose: str = "") -> Any:
        name = f"{node}, {purpose}" if purpose else node
        # Samples and tracebacks find a node by the mark: lines without one are this node's.
        owned = "\n".join(marked(line, node) for line in text.split("\n"))
        made = self.functions[name] = generated(f"fused: {self.nodes.sub.id}/{name}", owned, writer.names)
        return made
