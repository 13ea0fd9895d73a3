"""Writes the body of one generated function: the lines of operators and sinks below a node, and calls of other nodes.

Operators are written by the `Writer` of their class, which gets an `EmitContext`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from textwrap import indent
from types import BuiltinFunctionType, MethodDescriptorType
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.codegen.reading import RECORD, RecordVars
from riverrun.codegen.values import DictValue, OneValue, TupleValue
from riverrun.errors import USER_ERRORS, as_exception
from riverrun.generated import NotGenerated, block, marked
from riverrun.partitioning import partition_for, partitions_for
from riverrun.records import Change
from riverrun.serde.api import item_of, written_fields_of
from riverrun.serde.json_columns import columns_writer
from riverrun.state.access import CachedFold, FoldsInParts
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.processor.operator import Forward, Operator
    from riverrun.serde.api import Serde
    from riverrun.state.folds import Fold
    from riverrun.topology.nodes import Node, SourceNode, SubTopology

Folding: TypeAlias = "Callable[[str, Fold], CachedFold]"
"""`EmitContext.folding`."""
# Python allows 100 levels of indentation, of which the function and an operator's own lines need some.
_WIDEST = 80 * 4
# Python allows 20 statically nested blocks, of which the same need some.
_DEEPEST = 14
# What Python counts as a block; branches are none.
_BLOCK = re.compile(r"(for|while|try|except|finally|with)\b")
# Begins a line that stands for those of a node, by number: they are filled in once their depth is known.
_PLACE = "@"
_SINK = """\
try:
    {key_line}
    sink_value = {written}{chosen}
except user_errors as error:  # the plain function tries again, and asks the handler
    as_exception(error)
    {name}({key}, {value}, timestamp, headers)
else:
    send({name}_topic, sink_key, sink_value, timestamp, {headers}, {where})"""
_IN_C = BuiltinFunctionType | MethodDescriptorType
_INNER = """
    where = None if {key} is None else partition_for({name}_inner({key}), partitions({name}_topic))"""


def whole_value(_operator: Any) -> None:
    """Return that lines need the whole value."""


def all_records(_operator: Any, _folding: Folding) -> bool:
    """Return that keys and values matter."""
    return True


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the operators of a class.

    Args:
        lines: Returns the lines that process a record; raises `NotGenerated` if the operator has to be called, here or
            anywhere.
        columns_read: Returns the columns that the lines read; None if they need the whole value.
        passes_values: Whether the operators forward the values that they get.
        reads_records: Returns whether keys and values matter to the lines, rather than only the number of records.
    """

    lines: Callable[[Any, EmitContext], str]
    columns_read: Callable[[Any], tuple[str, ...] | None] = whole_value
    passes_values: bool = True
    reads_records: Callable[[Any, Folding], bool] = all_records


@dataclass(slots=True)
class RunningNodes:
    """The nodes for which functions of a sub-topology are written.

    Args:
        inlets: By node name, the plain function that takes the records of the node.
        sink_topics: By sink, its topic as Kafka knows it, except for sinks that choose topics or partitions.
        task: Objects of the task, by their names in functions.
        writer_of: Returns the writer of an operator; raises `NotGenerated` if there is none.
        is_watched: Whether functions report calls of nodes: `enter` and `leave` are in `task` then.
        reads_all: Whether keys and values are decoded even if no node uses them, so that handlers see malformed ones.
    """

    sub: SubTopology
    operators: Mapping[str, Operator]
    inlets: Mapping[str, Forward]
    sink_topics: Mapping[str, str]
    stores: Mapping[str, Any]
    task: Mapping[str, Any]
    writer_of: Callable[[object], Writer]
    is_watched: bool = False
    reads_all: bool = False
    by_name: Mapping[str, Node] = field(init=False)
    children: Mapping[str, Sequence[Node]] = field(init=False)
    called: dict[str, str] = field(default_factory=dict)
    """Nodes that written functions call, with the reasons."""
    _folds: dict[tuple[str, int], CachedFold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {node.name: node for node in self.sub.nodes}
        children: dict[str, list[Node]] = {node.name: [] for node in self.sub.nodes}
        for node in self.sub.nodes:
            for parent in node.parents:
                children[parent].append(node)
        self.children = children

    def folding(self, store: str, fold: Fold) -> CachedFold:
        """Return an aggregation into a store in parts, one for all functions; raise `NotGenerated` if it must be called."""
        # By fold as well: the aggregations of a cogroup have one store.
        known = store, id(fold)
        if known not in self._folds:
            opened = self.stores[store]
            found = opened.cached_fold(fold) if isinstance(opened, FoldsInParts) else None
            if found is None:
                raise NotGenerated("its store has no cache that it may change in place")
            self._folds[known] = found
        return self._folds[known]

    def columns_read(self, name: str, written: tuple[str, ...] | None = None) -> tuple[str, ...] | None:
        """Return the columns that the nodes below one read of its values; None if one of them needs a whole value.

        Sinks may write a dict with the names `written` without making it; None if they need the values as they are.
        """
        found, nodes = dict[str, None](), list(self.children[name])
        # The list grows while it is read.
        for node in nodes:
            if len(node.parents) > 1:
                return None
            if isinstance(node, SinkNode):
                if not self._writes(node, written):
                    return None
                continue
            operator = self.operators[node.name]
            try:
                writer = self.writer_of(operator)
            except NotGenerated:
                return None
            read = writer.columns_read(operator)
            if read is None:
                return None
            found |= dict.fromkeys(read)
            if writer.passes_values:
                nodes += self.children[node.name]
        return tuple(found)

    def _writes(self, sink: SinkNode, names: tuple[str, ...] | None) -> bool:
        return (
            names is not None and sink.name in self.sink_topics and columns_writer(sink.value_serde, names) is not None
        )


@dataclass(slots=True)
class FunctionWriter:
    """Writes one function.

    Args:
        names: Objects that the function names besides its variables; more are added.
        place: Expression of the current record's place.
        raw_key: Name of the bytes of the record's key; None if there are none.
        read_key: Expression of the key that was read from those bytes.
        reads_key: Name of the function that reads the key from those bytes; None if `key` has been read already.
        source: The source that has read the record; None if the function has not, or an extractor had the value first.
        is_flush: Whether the function flushes many updates, so that partitions of all keys are found at once.
    """

    nodes: RunningNodes
    names: dict[str, Any]
    place: str = "(context.topic, context.partition, context.offset)"
    raw_key: str | None = None
    read_key: str = "key"
    reads_key: str | None = None
    source: SourceNode | None = None
    is_flush: bool = False
    has_lines: bool = False
    """True if the function contains more than calls."""
    entered: dict[str, str] = field(default_factory=dict)
    """Functions that this one calls: by name, the node that each contains with those below it (`Fusion.entry`)."""
    placed: list[str] = field(default_factory=list)
    """Sinks that find the partitions of all keys of a flush at once."""
    # Numbers the functions of an operator that has several, so that each has its own names.
    scopes: int = 0
    _places: list[tuple[Node, RecordVars]] = field(default_factory=list)

    @property
    def only_calls(self) -> bool:
        """True if the function contains calls of plain functions alone."""
        return not (self.has_lines or self.entered)

    def below(self, node: str, given: RecordVars) -> str:
        """Return the lines for all children of a node."""
        return self._filled(self.places(node, given))

    def all_of(self, node: Node, given: RecordVars) -> str:
        """Return the lines for a node and those below it."""
        return self._filled(self._node(node, given))

    def calls(self, node: str, given: RecordVars) -> str:
        """Return the calls of the plain functions of all children of a node."""
        return "\n".join(
            marked(self._call(self._inlet(child), given), child.name) for child in self.nodes.children[node]
        )

    def places(self, node: str, given: RecordVars) -> str:
        """Return the placeholder lines of all children of a node."""
        return "\n".join(self.place_of(child, given) for child in self.nodes.children[node])

    def place_of(self, node: Node, given: RecordVars) -> str:
        self._places.append((node, given))
        return f"{_PLACE}{len(self._places) - 1}"

    def _filled(self, text: str) -> str:
        """Return lines with those of nodes in their places, each marked with the name of its node."""
        filled, blocks, waiting = list[str](), list[int](), [("", "", iter(text.splitlines()))]
        while waiting:
            margin, owner, lines = waiting[-1]
            line = next(lines, None)
            if line is None:
                waiting.pop()
                continue
            statement = line.lstrip(" ")
            width = len(margin) + len(line) - len(statement)
            while blocks and blocks[-1] >= width:
                blocks.pop()
            if statement.startswith(_PLACE):
                node, given = self._places[int(statement.removeprefix(_PLACE))]
                # Python refuses deeper code, and a node below merged streams is one function that all of these call.
                fits = width <= _WIDEST and len(blocks) <= _DEEPEST and len(node.parents) == 1
                lines_of_node = self._node(node, given) if fits else self._entry(node, given)
                waiting.append((" " * width, node.name, iter((lines_of_node or "pass").splitlines())))
                continue
            if _BLOCK.match(statement):
                blocks.append(width)
            filled.append(marked(f"{margin}{line}", owner))
        return "\n".join(filled) or "pass"

    def _node(self, node: Node, given: RecordVars) -> str:
        name = self._inlet(node)
        call = self._call(name, given)
        if isinstance(node, SinkNode):
            return self._sink(node, name, given) or call
        operator = self.nodes.operators[node.name]
        try:
            lines = self.nodes.writer_of(operator).lines(operator, EmitContext(self, node, name, given))
        except NotGenerated as why:
            self.nodes.called[node.name] = str(why)
            return call
        self.has_lines = True
        if not self.nodes.is_watched:
            return lines
        entered = f"call_{name} = enter({node.name!r}, {given.key}, {given.value}, context.topic)"
        return f"{entered}\n{lines}\nleave(call_{name})"

    def _entry(self, node: Node, given: RecordVars) -> str:
        if isinstance(node, SinkNode):
            return self._node(node, given)
        name = self.named(f"f{len(self.names)}", None)
        self.entered[name] = node.name
        return self._call(name, given)

    def update(self, new: str, old: str = "None", is_latest: str = "True") -> str:
        """Return an expression for an update of a table."""
        self.names |= {"made": tuple.__new__, "change": Change}
        return f"made(change, ({new}, {old}, {is_latest}))"

    def _inlet(self, node: Node) -> str:
        return self.named(f"n{len(self.names)}", self.nodes.inlets[node.name])

    @staticmethod
    def _call(name: str, given: RecordVars) -> str:
        return f"{name}({given.key}, {given.value}, timestamp, headers)"

    def _sink(self, node: SinkNode, name: str, given: RecordVars) -> str | None:
        topic, inner = self.nodes.sink_topics.get(node.name), node.key_serde.partition_key
        if topic is None:
            self.nodes.called[node.name] = "it chooses topics or partitions by a function"
            return None
        self.has_lines = True
        key, value = given.key, given.value
        self.named(f"{name}_topic", topic)
        key_item = given.key_items[0] if given.key_items else f"{key}[0]"
        written_key = self.written(f"{name}_key", node.key_serde.serialize, key, key_item)
        item = given.items[0] if given.items else f"{value}[0]"
        checked, written = "", self.written(f"{name}_value", node.value_serde.serialize, value, item, given.items)
        if given.columns is not None:
            written, checked = self._written_columns(name, node.value_serde, given)
        elif given.items is None and given.new is None:
            written = f"None if {value} is None else {written}"
        chosen, where = "", "None"
        if inner is not None:
            self.named(f"{name}_inner", inner)
            self.named("partition_for", partition_for)
            # One call for all keys of a flush: the key is the store's, not one that an operator below has made.
            if self.is_flush and key == "key":
                self.placed.append(name)
                self.named("places", places)
                where = f"{name}_where"
            else:
                chosen, where = _INNER.format(name=name, key=key), "where"
        key_line = f"sink_key = None if {given.lacks_key or f'{key} is None'} else {written_key}"
        # Python handles signals after a call into C, so a sample at this line shows the work of the node above.
        if isinstance(node.key_serde.serialize, _IN_C) and len(node.parents) == 1:
            key_line = marked(key_line, node.parents[0])
        headers = "headers"
        if node.topic in self.nodes.sub.repartition_topics:
            # Users' headers must not make a record of a repartition topic look like a pack.
            headers = "headers if not headers or headers[-1][0] not in reserved else guarded(headers)"
        return _SINK.format(
            name=name,
            key=key,
            key_line=key_line,
            value=value,
            written=written,
            chosen=checked + chosen,
            where=where,
            headers=headers,
        )

    def _written_columns(self, name: str, serde: Serde[Any], given: RecordVars) -> tuple[str, str]:
        """Return the call that writes a dict that is taken apart, and the lines that check the bytes."""
        columns = given.columns or {}
        writer = columns_writer(serde, tuple(columns))
        assert writer is not None  # noqa: S101 - `columns_read` has made sure
        items = list(columns.values())
        made = f"{self.named(f'{name}_made', writer.make)}({', '.join(items[place] for place in writer.places)})"
        doubtful, check = self.named(f"{name}_doubtful", writer.doubtful), self.named(f"{name}_check", writer.check)
        checked = block(f"if sink_value.find({doubtful}) >= 0:", f"{check}({given.value})")
        return f"{self.named(f'{name}_encode', writer.encode)}({made})", indent(f"\n{checked}", " " * 4)

    def written(
        self, name: str, serialize: Callable[[Any], bytes], row: str, item: str, items: tuple[str, ...] | None = None
    ) -> str:
        """Return the call that writes a key or a value."""
        # A row of one item is written by the item's own function, and one that is taken apart as an object if it can be.
        own, fields = item_of(serialize), None if items is None else written_fields_of(serialize)
        if fields is not None:
            made = f"{self.named(f'{name}_made', fields.make)}({', '.join(items or ())})"
            return f"{self.named(f'{name}_encode', fields.encode)}({made})"
        return f"{self.named(name, serialize)}({row})" if own is None else f"{self.named(name, own)}({item})"

    def named(self, name: str, thing: Any) -> str:
        self.names[name] = thing
        return name


@dataclass(frozen=True, slots=True)
class EmitContext:
    """The place in a generated function where the lines of an operator go.

    Lines may name `timestamp`, `headers` and `context` of the current record, and whatever `named` and `own` return.
    """

    writer: FunctionWriter
    node: Node
    name: str
    given: RecordVars
    scope: str = ""

    @property
    def key(self) -> str:
        """The name of the record's key."""
        return self.given.key

    @property
    def key_items(self) -> tuple[str, ...] | None:
        """Expressions for the items of a key that is a tuple, None for those of a null key; None if it is not taken apart."""
        return self.given.key_items

    @property
    def lacks_key(self) -> str:
        return self.given.lacks_key or f"{self.key} is None"

    @property
    def value(self) -> str:
        return self.given.value

    @property
    def is_row(self) -> bool:
        """True if the value is taken apart, and never None."""
        return self.given.items is not None or self.given.columns is not None

    @property
    def columns(self) -> Mapping[str, str] | None:
        """Expressions for columns of a value that is taken apart: all that operators read; None if it is not."""
        return self.given.columns

    @property
    def new(self) -> str:
        """An expression: the new value, where the value is the update of a table."""
        return f"{self.value}.new" if self.given.new is None else self.given.new

    @property
    def process(self) -> str:
        """A statement: the call of the operator with the record."""
        return f"{self.name}({self.key}, {self.value}, timestamp, headers)"

    @property
    def raw_key(self) -> str | None:
        """The name of the bytes that the key was read from; None if they are not known."""
        return self.writer.raw_key if self.key == self.writer.read_key else None

    def raw_value(self, deserialize: Callable[[bytes], Any]) -> str | None:
        """Return the name of the bytes that a serde has read the value from; None if others may have had the value since."""
        source = self.writer.source
        if source is None or source.value_serde.deserialize is not deserialize or self.given != RECORD:
            return None
        return "raw_value" if self.writer.nodes.children[source.name] == [self.node] else None

    @property
    def key_as_read(self) -> str:
        """An expression: the key. Where keys are only counted, `key` names its bytes."""
        reads = self.writer.reads_key
        return self.key if reads is None else f"{reads}({self.key})"

    @property
    def place(self) -> str:
        """An expression: the topic, partition and offset of the current record."""
        return self.writer.place

    @property
    def stores(self) -> Mapping[str, Any]:
        """The task's stores by name; they are open."""
        return self.writer.nodes.stores

    def folding(self, store: str, fold: Fold) -> CachedFold:
        """Return the aggregation into a store in parts, one for all functions; raise `NotGenerated` if it must be called."""
        return self.writer.nodes.folding(store, fold)

    def named(self, name: str, thing: Any) -> str:
        """Return the name in the function for an object of the operator's."""
        return self.writer.named(f"{self.name}{self.scope}_{name}", thing)

    def own(self, name: str) -> str:
        """Return the name of a variable that no other operator has."""
        return f"{name}_{self.name}{self.scope}"

    def on(self, value: str | TupleValue) -> EmitContext:
        """Return a copy of this context with another value, and its own namespace."""
        given = self._given(value)
        self.writer.scopes += 1
        return replace(self, given=given, scope=f"_{self.writer.scopes}")

    def item(self, number: int) -> str:
        """Return an expression for an item of the value, which is a tuple."""
        items = self.given.items
        return f"{self.value}[{number}]" if items is None else items[number]

    def below(self, key: str | None = None, value: str | TupleValue | DictValue | OneValue | None = None) -> str:
        """Return the lines of the operator's children, given expressions for key and value where these are others."""
        before = getattr(value, "lines", "")
        if isinstance(value, OneValue) or (isinstance(value, DictValue) and not self._takes_columns(value)):
            before, value = f"{before}\n{self.own('value')} = {value.whole}".lstrip("\n"), self.own("value")
        given = self.given if value is None else self._given(value)
        if key is not None:
            given = replace(given, key=key, key_items=None, lacks_key="")
        lines = self.writer.places(self.node.name, given)
        return f"{before}\n{lines}" if before else lines

    def updated(self, new: str) -> str:
        """Return the lines of the children of a table's operator, which get an update: a new value, and no old one."""
        latest = f"{self.value}.is_latest" if self.given.new is None else self.given.latest
        given = replace(self._given(self.writer.update(new, is_latest=latest)), new=new, latest=latest)
        return self.writer.places(self.node.name, given)

    def _takes_columns(self, value: DictValue) -> bool:
        read = self.writer.nodes.columns_read(self.node.name, value.names)
        return read is not None and set(value.names).issuperset(read)

    def _given(self, value: str | TupleValue | DictValue) -> RecordVars:
        whole = value if isinstance(value, str) else value.whole
        items = value.items if isinstance(value, TupleValue) else None
        columns = dict(zip(value.names, value.items, strict=True)) if isinstance(value, DictValue) else None
        return replace(self.given, value=whole, items=items, columns=columns, new=None, latest="True")

    def lacking(self, *others: str) -> str:
        """Return the test whether the value is None, which a row never is, or one of other tests is true."""
        return " or ".join((*(() if self.is_row else (f"{self.value} is None",)), *others)) or "False"

    def to(self, child: str) -> str:
        return self.writer.place_of(self.writer.nodes.by_name[child], self.given)


def places(inner: Callable[[Any], bytes], keys: Sequence[Any], partitions: int) -> list[int] | list[int | None]:
    """Return the partitions of windowed keys, found by the bytes of the inner keys; None for a key that cannot be written."""
    try:
        return partitions_for([inner(key) for key in keys], partitions)
    # Serdes are the user's. Not the place to report one: the sink tries again, and names the record.
    except USER_ERRORS as error:
        as_exception(error)
        return [_place(inner, key, partitions) for key in keys]


def _place(inner: Callable[[Any], bytes], key: Any, partitions: int) -> int | None:
    try:
        return partition_for(inner(key), partitions)
    except USER_ERRORS as error:
        as_exception(error)
        return None
