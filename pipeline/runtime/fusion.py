"""Makes one function of a source, or an operator with state, and the operators without state below it: no call per hop.

The function is generated as Python source, once per task; that of a source is a loop over records. Decoding, filters, mappers,
plain sinks and aggregations into caches become lines; whatever else there is - other operators with stores, users' processors,
sinks that choose topics or partitions - is called from there. It does what `Task` does record by record, in the same order:
`tests/unit/runtime/test_fusion.py` compares the two. What is out of the ordinary (a record that cannot be decoded, a value that
cannot be written) is handed to the plain functions, which know what to say about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.operators.branch import Branch
from pipeline.operators.process import UserFixedKeyProcessor, UserProcessor
from pipeline.operators.stateless import (
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapKey,
    MapValues,
    OfValue,
    PassThrough,
    Peek,
)
from pipeline.operators.table_transforms import TableTransformValues
from pipeline.operators.tables import ToStream
from pipeline.partitioning import partition_for
from pipeline.runtime.fused_folds import FOLDING, fold_lines
from pipeline.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.processor.operator import Operator
    from pipeline.records import Headers
    from pipeline.runtime.context import TaskContext
    from pipeline.runtime.ports import Collector
    from pipeline.state.cache import CachedFold
    from pipeline.topology.nodes import Node, SourceNode, SubTopology

    Forward = Callable[[Any, Any, int, Headers], None]

Loop: TypeAlias = Callable[[Any, int, int], int]
"""`(queue, limit, last_time_ms) -> done`: processes up to `limit` records of a queue, none of a later time; gives how many."""

_DEEPEST = 10
"""How many loops may lie within each other; Python allows 20 blocks."""
_SCHEDULING = (UserProcessor, UserFixedKeyProcessor, TableTransformValues)
"""Operators that may ask for punctuations."""

_LOOP = """\
def run(queue, limit, last_time):
    records, decode, event_time = queue.waiting, queue.decode, queue.event_time
    context.topic, context.partition = queue.tp
    stream_time, partition_time = context.stream_time, queue.partition_time
    offset, skipped, popleft = -1, 0, records.popleft
    count = min(limit, len(records))
    try:
        for done in range(count):
            {stop}
            raw = popleft()
            raw_key, raw_value, timestamp, offset, headers = raw
            try:
                key = None if raw_key is None else key_of(raw_key)
                value = None if raw_value is None else value_of(raw_value)
            except Exception:  # serdes are the user's: `decode` tries again, and asks the handler
                timestamp = -1
            {extract}
            if timestamp < 0:
                decoded = decode(raw)
                if decoded is None:
                    skipped += 1
                    continue
                key, value, timestamp, offset, headers = decoded
            if timestamp > partition_time:
                partition_time = timestamp
            context.offset, context.timestamp, context.headers = offset, timestamp, headers
            if timestamp > stream_time:
                stream_time = context.stream_time = timestamp
{nodes}
        return count - skipped
    finally:
        queue.partition_time = partition_time
        if offset >= 0:
            queue.next_offset = offset + 1
        if skipped:
            context.has_skipped = True
"""
_FORWARD = """\
def run(key, value, timestamp, headers):
{nodes}
"""
_STOP = "if records[0][2] > last_time: return done - skipped"
_EXTRACT = "else: queue.partition_time = partition_time; timestamp = event_time(raw, key, value)"
_PUNCTUATE = """\
if stream_time >= punctuations.next_due_ms:
    punctuations.fire(stream_time)
    context.topic, context.partition = queue.tp"""
_SINK = """\
try:
    raw_key = None if {key} is None else {name}_key({key})
    raw_value = None if {value} is None else {name}_value({value}){chosen}
except Exception:  # the plain function tries again, and asks the handler
    {name}({key}, {value}, timestamp, headers)
else:
    send({name}_topic, raw_key, raw_value, timestamp, headers, {where})"""
_INNER = """
    where = None if {key} is None else partition_for({name}_inner({key}), partitions({name}_topic))"""


@dataclass(frozen=True, slots=True)
class _Form:
    """How an operator is written: one line, and the attribute that is the user's function.

    A line that names `{key}` or `{value}` gives what is below new ones, made of the `{given}` value or by a `{call}`; one that
    ends in a colon has what is below as its block.
    """

    line: str
    function: str = ""


_FORMS: Mapping[type, _Form] = {
    PassThrough: _Form("pass"),
    ToStream: _Form("{value} = {given}.new"),
    Peek: _Form("{call}", "action"),
    Filter: _Form("if {call}:", "predicate"),
    Map: _Form("{key}, {value} = {call}", "mapper"),
    MapKey: _Form("{key} = {call}", "mapper"),
    MapValues: _Form("{value} = {call}", "mapper"),
    FlatMap: _Form("for {key}, {value} in {call}:", "mapper"),
    FlatMapValues: _Form("for {value} in {call}:", "mapper"),
}


@dataclass(slots=True)
class Fusion:
    """Generates the loops of one sub-topology.

    Args:
        sub: The sub-topology.
        operators: Its operators by node name.
        inlets: By node name, the plain function that takes what reaches the node.
        sink_topics: By sink, its topic as Kafka knows it; sinks that choose topics or partitions are not among them.
        stores: The task's stores by name.
        context: The task's current record.
        collector: Where sinks send.
    """

    sub: SubTopology
    operators: Mapping[str, Operator]
    inlets: Mapping[str, Forward]
    sink_topics: Mapping[str, str]
    stores: Mapping[str, Any]
    context: TaskContext
    collector: Collector
    _folds: dict[str, CachedFold] = field(default_factory=dict)
    _children: dict[str, list[Node]] = field(default_factory=dict)
    _names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find out who is below whom, and who aggregates into caches."""
        for name, operator in self.operators.items():
            fold = operator.cached_fold(self.stores) if isinstance(operator, FOLDING) else None
            if fold is not None:
                self._folds[name] = fold
        for node in self.sub.nodes:
            for parent in node.parents:
                self._children.setdefault(parent, []).append(node)

    def loop(self, source: SourceNode, *, has_extractor: bool) -> Loop:
        """The function for a source.

        Args:
            source: The source.
            has_extractor: Whether something other than the record's own timestamp gives the event time. Such a loop cannot know
                a time before it has taken the record, and does not look at `last_time_ms`.
        """
        self._names = {
            "context": self.context,
            "punctuations": self.context.stream_punctuations,
            "send": self.collector.send,
            "key_of": source.key_serde.deserialize,
            "value_of": source.value_serde.deserialize,
        }
        lines = [*self._below(source.name, "key", "value", 0)]
        if any(isinstance(operator, _SCHEDULING) for operator in self.operators.values()):
            lines += _PUNCTUATE.splitlines()
        text = _LOOP.format(
            stop="" if has_extractor else _STOP,
            extract=_EXTRACT if has_extractor else "",
            nodes=indent("\n".join(lines), " " * 12),
        )
        loop: Loop = self._made(source.name, text)
        return loop

    def forward(self, node: str) -> Forward | None:
        """The function by which an operator forwards to its children; None if each of them is only called."""
        if not any(self._is_taken_apart(child) for child in self._children.get(node, [])):
            return None
        self._names = {"send": self.collector.send, "context": self.context}
        lines = self._below(node, "key", "value", 0)
        made: Forward = self._made(node, _FORWARD.format(nodes=indent("\n".join(lines), " " * 4)))
        return made

    def _made(self, name: str, text: str) -> Any:
        exec(compile(text, f"<fused {name}>", "exec"), self._names)  # noqa: S102 - our text: users' functions are names in it
        return self._names["run"]

    def _is_taken_apart(self, node: Node) -> bool:
        """Whether a node becomes lines, rather than a call."""
        if isinstance(node, SinkNode):
            return node.name in self.sink_topics
        operator = self.operators[node.name]
        is_known = isinstance(operator, Branch) or type(operator) in _FORMS or node.name in self._folds
        return len(node.parents) == 1 and is_known

    def _below(self, node: str, key: str, value: str, depth: int) -> Iterable[str]:
        """The lines for all children of a node, given the names that hold key and value."""
        for child in self._children.get(node, []):
            yield from self._lines(child, key, value, depth)

    def _lines(self, node: Node, key: str, value: str, depth: int) -> Iterable[str]:
        """The lines for one node and what is below it; a call where it cannot be taken apart."""
        number = len(self._names)
        name = self._named(f"n{number}", self.inlets[node.name])
        if isinstance(node, SinkNode):
            return self._sink(node, name, key, value)
        if depth > _DEEPEST or not self._is_taken_apart(node):
            return [f"{name}({key}, {value}, timestamp, headers)"]
        return self._operator(node, name, key, value, depth)

    def _operator(self, node: Node, name: str, key: str, value: str, depth: int) -> list[str]:
        """The lines for an operator without state."""
        operator = self.operators[node.name]
        if isinstance(operator, Branch):
            return self._branches(operator, name, key, value, depth + 1)
        if node.name in self._folds:
            lines, names = fold_lines(name, operator, self._folds[node.name], key, value)
            self._names |= names
            return lines
        form = _FORMS[type(operator)]
        own_key, own_value = f"k_{name}", f"v_{name}"
        call = self._call(f"f_{name}", getattr(operator, form.function), key, value) if form.function else ""
        line = form.line.format(call=call, key=own_key, value=own_value, given=value)
        key, value = own_key if "{key}" in form.line else key, own_value if "{value}" in form.line else value
        below = list(self._below(node.name, key, value, depth + 1))
        return [line, *(_within(below) if line.endswith(":") else below)]

    def _branches(self, branch: Branch, name: str, key: str, value: str, depth: int) -> list[str]:
        nodes = {node.name: node for node in self.sub.nodes}
        lines, word = [], "if"
        for number, (predicate, child) in enumerate(zip(branch.predicates, branch.children, strict=False)):
            condition = self._call(f"f_{name}_{number}", predicate, key, value)
            lines += [f"{word} {condition}:", *_within(list(self._lines(nodes[child], key, value, depth)))]
            word = "elif"
        if len(branch.children) > len(branch.predicates):
            default = list(self._lines(nodes[branch.children[-1]], key, value, depth))
            lines += ["else:", *_within(default)] if branch.predicates else default
        return lines

    def _call(self, name: str, function: Any, key: str, value: str) -> str:
        """The call of a user's function, without the detour of one that does not look at the key."""
        if isinstance(function, OfValue):
            return f"{self._named(name, function.mapper)}({value})"
        return f"{self._named(name, function)}({key}, {value})"

    def _sink(self, node: SinkNode, name: str, key: str, value: str) -> list[str]:
        if node.name not in self.sink_topics:
            return [f"{name}({key}, {value}, timestamp, headers)"]
        self._named(f"{name}_topic", self.sink_topics[node.name])
        self._named(f"{name}_key", node.key_serde.serialize)
        self._named(f"{name}_value", node.value_serde.serialize)
        if node.key_serde.partition_key is None:
            return _SINK.format(name=name, key=key, value=value, chosen="", where="None").splitlines()
        self._named(f"{name}_inner", node.key_serde.partition_key)
        self._names |= {"partition_for": partition_for, "partitions": self.collector.partitions}
        chosen = _INNER.format(name=name, key=key)
        return _SINK.format(name=name, key=key, value=value, chosen=chosen, where="where").splitlines()

    def _named(self, name: str, thing: Any) -> str:
        self._names[name] = thing
        return name


def _within(lines: list[str]) -> list[str]:
    """The lines of a block."""
    return [f"    {line}" for line in lines or ["pass"]]
