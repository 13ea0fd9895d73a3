"""Makes one function of a source, or an operator with state, and the operators without state below it: no call per hop.

The function is generated as Python source, once per task; that of a source is a loop over records. Decoding, filters, mappers,
plain sinks, look-ups in tables and aggregations into caches become lines; whatever else there is - other operators with stores,
users' processors, sinks that choose topics or partitions - is called from there. It does what `Task` does record by record, in
the same order: `tests/unit/runtime/test_fusion.py` compares the two. What is out of the ordinary (a record that cannot be
decoded, a value that cannot be written) is handed to the plain functions, which know what to say about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.errors import USER_ERRORS
from pipeline.operators.branch import Branch
from pipeline.operators.joins import StreamTableJoin, StreamTableLeftJoin
from pipeline.operators.process import UserFixedKeyProcessor, UserProcessor
from pipeline.operators.stateless import (
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapKey,
    MapValues,
    OfValue,
    OfValues,
    PassThrough,
    Peek,
    has_key,
    pair_of,
)
from pipeline.operators.table_transforms import TableTransformValues
from pipeline.operators.tables import ToStream
from pipeline.partitioning import partition_for, partitions_for
from pipeline.records import Change
from pipeline.runtime.context import NO_RECORD
from pipeline.runtime.fused_folds import FOLDING, Origin, fold_lines, is_counting
from pipeline.runtime.generated import generated
from pipeline.state.cache import UNREAD
from pipeline.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pipeline.processor.operator import Operator
    from pipeline.records import Headers
    from pipeline.runtime.context import TaskContext
    from pipeline.runtime.ports import RecordCollector, Watch
    from pipeline.state.api import CachedUpdate
    from pipeline.state.cache import CachedFold
    from pipeline.topology.nodes import Node, SourceNode, SubTopology

    Forward = Callable[[Any, Any, int, Headers], None]
    Flush = Callable[[Sequence[CachedUpdate], Callable[[Any], Any]], None]

Loop: TypeAlias = Callable[[Any, int, int], int]
"""`(queue, limit, last_time_ms) -> done`: processes up to `limit` records of a queue, none of a later time; gives how many."""

_DEEPEST = 10
"""How many loops may lie within each other; Python allows 20 blocks."""
_TOO_DEEP = f"it lies below more than {_DEEPEST} others"
_JOINS = (StreamTableJoin, StreamTableLeftJoin)
_SCHEDULING = (UserProcessor, UserFixedKeyProcessor, TableTransformValues)
"""Operators that may ask for punctuations."""

_LOOP = """\
def run(queue, limit, last_time):
    records, decode, event_time = queue.waiting, queue.decode, queue.event_time
    topic, partition = context.topic, context.partition = queue.tp
    stream_time, partition_time = context.stream_time, queue.partition_time
    offset, skipped, popleft = -1, 0, records.popleft
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
                {read_again}, timestamp, offset, headers = decoded
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
_FLUSH = """\
def run(updates, key_of):
    keys = [key_of(update[0]) for update in updates]
{places}
    for (_, new, old, timestamp, headers, place), key{each} in zip(updates, keys{all}):
        context.topic, context.partition, context.offset = place or nowhere
        context.timestamp, context.headers = timestamp, headers
{nodes}
"""
_CHANGE = "value = made(change, (new, old, True))"
_STOP = """\
if raw[2] > last_time:
                records.appendleft(raw)
                return done - skipped"""
_READ = """\
try:
    key = None if raw_key is None else key_of(raw_key)
    value = None if raw_value is None else value_of(raw_value)
except user_errors:  # serdes are the user's: `decode` tries again, and asks the handler
    timestamp = -1
"""
_UNREAD = "key, value = raw_key, raw_value"
_EXTRACT = "else: queue.partition_time = partition_time; timestamp = event_time(raw, key, value)"
_PUNCTUATE = """\
if stream_time >= punctuations.next_due_ms:
    punctuations.fire(stream_time)
    context.topic, context.partition = queue.tp"""
_SINK = """\
try:
    sink_key = None if {key} is None else {name}_key({key})
    sink_value = None if {value} is None else {name}_value({value}){chosen}
except user_errors:  # the plain function tries again, and asks the handler
    {name}({key}, {value}, timestamp, headers)
else:
    send({name}_topic, sink_key, sink_value, timestamp, headers, {where})"""
_INNER = """
    where = None if {key} is None else partition_for({name}_inner({key}), partitions({name}_topic))"""


_JOIN = """\
table_key = {table_key}
if {value} is None or table_key is None:
    {name}({key}, {value}, timestamp, headers)
else:
    found = {name}_operator.lookup(table_key)
    if found is not None:
        {joined} = {call}
{below}"""
_CACHED_JOIN = """\
if {value} is None or {key} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    found = {name}_known(raw_key, unread)
    if found is unread:
        found = {name}_find(raw_key, {key})
    if found is not None:
        {joined} = {call}
{below}"""
_CACHED_LEFT_JOIN = """\
if {value} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    found = None if {key} is None else {name}_known(raw_key, unread)
    if found is unread:
        found = {name}_find(raw_key, {key})
    {joined} = {call}
{below}"""
_LEFT_JOIN = """\
if {value} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    table_key = {table_key}
    found = None if table_key is None else {name}_operator.lookup(table_key)
    {joined} = {call}
{below}"""
_PAIR = "{{key}}, {{value}} = pair if {given}.__class__ is tuple else pair_of(pair)"
"""Takes a pair apart; a look at its class costs less than a call."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How an operator is written: its line, or two, and the attribute that is the user's function.

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
    Map: _Form(_PAIR.format(given="(pair := {call})"), "mapper"),
    MapKey: _Form("{key} = {call}", "mapper"),
    MapValues: _Form("{value} = {call}", "mapper"),
    FlatMap: _Form("for pair in {call}:\n" + _PAIR.format(given="pair"), "mapper"),
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
        reads_all: Whether keys and values are decoded even if nobody looks at them.
        watch: Looks on at each call of a node, if anybody does.
    """

    sub: SubTopology
    operators: Mapping[str, Operator]
    inlets: Mapping[str, Forward]
    sink_topics: Mapping[str, str]
    stores: Mapping[str, Any]
    context: TaskContext
    collector: RecordCollector
    reads_all: bool = False
    watch: Watch | None = None
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """What was generated, by the node it stands for, and what it does there."""
    _folds: dict[str, CachedFold] = field(default_factory=dict)
    _too_deep: set[str] = field(default_factory=set)
    _children: dict[str, list[Node]] = field(default_factory=dict)
    _names: dict[str, Any] = field(default_factory=dict)
    _is_loop: bool = False
    _placed: list[str] | None = None
    _unread_key_of: Callable[[bytes], Any] | None = None

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
            "user_errors": USER_ERRORS,
            "punctuations": self.context.stream_punctuations,
            "send": self.collector.send,
            "key_of": source.key_serde.deserialize,
            "value_of": source.value_serde.deserialize,
        }
        self._is_loop = True
        is_unread = not (has_extractor or self.reads_all) and self._is_only_counted(source)
        self._unread_key_of = source.key_serde.deserialize if is_unread else None
        lines = [*self._below(source.name, "key", "value", 0)]
        if any(isinstance(operator, _SCHEDULING) for operator in self.operators.values()):
            lines += _PUNCTUATE.splitlines()
        text = _LOOP.format(
            stop="" if has_extractor else _STOP,
            read=indent(_UNREAD if is_unread else _READ + (_EXTRACT if has_extractor else ""), " " * 12),
            read_again="_, _" if is_unread else "key, value",
            nodes=indent("\n".join(lines), " " * 12),
        )
        loop: Loop = self._made(source.name, text)
        return loop

    def forward(self, node: str) -> Forward | None:
        """The function by which an operator forwards to its children; None if each of them is only called."""
        if not any(self._is_taken_apart(child) for child in self._children.get(node, [])):
            return None
        self._names = {"send": self.collector.send, "context": self.context, "user_errors": USER_ERRORS}
        self._is_loop = False
        lines = self._below(node, "key", "value", 0)
        made: Forward = self._made(f"{node}, forward", _FORWARD.format(nodes=indent("\n".join(lines), " " * 4)))
        return made

    def flush(self, node: str) -> Flush | None:
        """The function by which the updates that a cache held back are forwarded to an operator's children, many at once.

        Where windowed keys are sent to is found for all of them together. None if each child is only called.
        """
        children = self._children.get(node, [])
        if not any(self._is_taken_apart(child) for child in children):
            return None
        self._names = {
            "send": self.collector.send,
            "context": self.context,
            "user_errors": USER_ERRORS,
            "nowhere": NO_RECORD,
            "made": tuple.__new__,
            "change": Change,
        }
        self._is_loop, self._placed = False, []
        if all(isinstance(self.operators.get(child.name), ToStream) for child in children):
            lines = [line for child in children for line in self._below(child.name, "key", "new", 0)]
        else:
            lines = [_CHANGE, *self._below(node, "key", "value", 0)]
        placed, self._placed = self._placed, None
        text = _FLUSH.format(
            places="\n".join(
                f"    {name}_places = places({name}_inner, keys, partitions({name}_topic))" for name in placed
            ),
            each="".join(f", {name}_where" for name in placed),
            all="".join(f", {name}_places" for name in placed),
            nodes=indent("\n".join(lines), " " * 8),
        )
        made: Flush = self._made(f"{node}, flush", text)
        return made

    def _is_only_counted(self, source: SourceNode) -> bool:
        """Whether nothing is done with a source's records but to count them, and they were written by the topology itself.

        Then nobody looks at their values, and at their keys only once for each. Records of others are read all the same: some
        may be in another form, and that has to be said.
        """
        folds = [self._folds.get(child.name) for child in self._children.get(source.name, [])]
        is_counted = len(folds) == 1 and folds[0] is not None and is_counting(folds[0])
        return is_counted and source.pattern is None and self.sub.repartition_topics.issuperset(source.topics)

    def reasons(self) -> Mapping[str, str]:
        """Why nodes are called from the functions that were generated, by name; nodes that became lines are not there."""
        reasons = {node.name: self._why_called(node) for node in self.sub.nodes if node.parents}
        return {name: reason for name, reason in reasons.items() if reason} | dict.fromkeys(self._too_deep, _TOO_DEEP)

    def _made(self, name: str, text: str) -> Any:
        made = self.functions[name] = generated(f"{self.sub.id}/{name}", text, self._names)
        return made

    def _is_taken_apart(self, node: Node) -> bool:
        """Whether a node becomes lines, rather than a call."""
        return not self._why_called(node)

    def _why_called(self, node: Node) -> str:
        """Why a node is called; empty if it becomes lines."""
        if isinstance(node, SinkNode):
            return "" if node.name in self.sink_topics else "it chooses topics or partitions by a function"
        if len(node.parents) != 1:
            return "several nodes forward to it"
        operator = self.operators[node.name]
        if isinstance(operator, (Branch, *_JOINS)) or type(operator) in _FORMS or node.name in self._folds:
            return ""
        if isinstance(operator, FOLDING):
            return "its store has no cache that it may change in place"
        return f"{type(operator).__name__} says no lines of its own"

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
        if depth > _DEEPEST:
            self._too_deep.add(node.name)
        if depth > _DEEPEST or not self._is_taken_apart(node):
            return [f"{name}({key}, {value}, timestamp, headers)"]
        lines = self._operator(node, name, key, value, depth)
        return lines if self.watch is None else self._watched(self.watch, lines, node, name, key, value)

    def _watched(self, watch: Watch, lines: list[str], node: Node, name: str, key: str, value: str) -> list[str]:
        """The lines for an operator, between those that tell a watch of its call."""
        self._names |= {"enter": watch.enter, "leave": watch.leave}
        return [f"call_{name} = enter({node.name!r}, {key}, {value}, context.topic)", *lines, f"leave(call_{name})"]

    def _operator(self, node: Node, name: str, key: str, value: str, depth: int) -> list[str]:
        """The lines for an operator without state."""
        operator = self.operators[node.name]
        if isinstance(operator, Branch):
            return self._branches(operator, name, key, value, depth + 1)
        if isinstance(operator, _JOINS):
            return self._join(operator, node, name, key, value, depth)
        if node.name in self._folds:
            origin = Origin(key, value)
            if self._is_loop:
                raw_key = "raw_key" if key == "key" else None
                origin = Origin(key, value, "(topic, partition, offset)", raw_key, self._unread_key_of)
            lines, names = fold_lines(name, operator, self._folds[node.name], origin)
            self._names |= names
            return lines
        form = _FORMS[type(operator)]
        own_key, own_value = f"k_{name}", f"v_{name}"
        call = self._call(f"f_{name}", getattr(operator, form.function), key, value) if form.function else ""
        line = form.line.format(call=call, key=own_key, value=own_value, given=value)
        if isinstance(operator, Filter) and operator.predicate is has_key:
            line = f"if {key} is not None:"
        key, value = own_key if "{key}" in form.line else key, own_value if "{value}" in form.line else value
        if isinstance(operator, Map | FlatMap):
            self._named("pair_of", pair_of)
        first, *lines = *line.splitlines(), *self._below(node.name, key, value, depth + 1)
        return [first, *(_within(lines) if first.endswith(":") else lines)]

    def _join(
        self, join: StreamTableJoin | StreamTableLeftJoin, node: Node, name: str, key: str, value: str, depth: int
    ) -> list[str]:
        """A look-up in a table, which is open by the time of the first record.

        By a record's own key, values that a cache has read are found by the bytes that the key was read from.
        """
        self._named(f"{name}_operator", join)
        is_left, joined = isinstance(join, StreamTableLeftJoin), f"v_{name}"
        table_key = key if join.key_of is None else f"{self._named(f'{name}_key_of', join.key_of)}({key}, {value})"
        lookup = join.cached_lookup(self.stores) if self._is_loop and key == "key" else None
        if lookup is not None:
            self._names |= {f"{name}_known": lookup.values.get, f"{name}_find": lookup.find, "unread": UNREAD}
            form, other = _CACHED_LEFT_JOIN if is_left else _CACHED_JOIN, "found"
        elif is_left:
            form, other = _LEFT_JOIN, "None if found is None else found.value"
        else:
            form, other = _JOIN, "found.value"
        if isinstance(join.joiner, OfValues):
            call = f"{self._named(f'f_{name}', join.joiner.joiner)}({value}, {other})"
        else:
            call = f"{self._named(f'f_{name}', join.joiner)}({key}, {value}, {other})"
        if not is_left and join.key_of is not None:
            table_key = f"None if {value} is None else {table_key}"
        below = "\n".join(self._below(node.name, key, joined, depth + 1))
        names = {"name": name, "key": key, "value": value, "table_key": table_key, "joined": joined, "call": call}
        return form.format(**names, below=indent(below, " " * 4 * (1 if is_left else 2))).splitlines()

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
        self._names |= {"partition_for": partition_for, "partitions": self.collector.partitions, "places": _places}
        if self._placed is not None and key == "key":
            self._placed.append(name)
            return _SINK.format(name=name, key=key, value=value, chosen="", where=f"{name}_where").splitlines()
        chosen = _INNER.format(name=name, key=key)
        return _SINK.format(name=name, key=key, value=value, chosen=chosen, where="where").splitlines()

    def _named(self, name: str, thing: Any) -> str:
        self._names[name] = thing
        return name


def _places(inner: Callable[[Any], bytes], keys: Sequence[Any], partitions: int) -> list[int] | list[int | None]:
    """The partitions of windowed keys, by the bytes of the `inner` ones; None for what cannot be written: its sink says so."""
    try:
        return partitions_for([inner(key) for key in keys], partitions)
    except USER_ERRORS:  # serdes are the user's
        return [_place(inner, key, partitions) for key in keys]


def _place(inner: Callable[[Any], bytes], key: Any, partitions: int) -> int | None:
    try:
        return partition_for(inner(key), partitions)
    except USER_ERRORS:  # serdes are the user's
        return None


def _within(lines: list[str]) -> list[str]:
    """The lines of a block."""
    return [f"    {line}" for line in lines or ["pass"]]
