"""Builds the operators of a sub-topology and binds each to its children, for a task or only to show the generated code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from riverrun.codegen.function_writer import RunningNodes
from riverrun.codegen.fusion import Fusion
from riverrun.codegen.registry import writer_of
from riverrun.errors import USER_ERRORS, RefusedRecordError, RegistryError, StreamsError, as_exception
from riverrun.generated import text_of
from riverrun.operators.process import UserProcessor
from riverrun.partitioning import partition_for
from riverrun.processor.handlers import ErrorHandlers, ProducerRecord, SerializationExceptionOrigin
from riverrun.processor.operator import Closes
from riverrun.processor.suppliers import PROCESSOR, supplied
from riverrun.records import TaskId
from riverrun.runtime.context import NO_RECORD, TaskContext
from riverrun.runtime.failures import Failures, user_code
from riverrun.runtime.layout import full_name
from riverrun.runtime.node_context import ChosenPartitions, ChosenTopic, NodeContext
from riverrun.runtime.packs import RESERVED, guarded
from riverrun.serde.api import refusal
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.state.values import shown
from riverrun.topology.nodes import ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.processor.api import Processor
    from riverrun.processor.operator import Forward, Operator
    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.records import Headers, Send
    from riverrun.runtime.ports import RecordCollector, Watch
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

_PLAIN = "a handler for processing or production records takes records one by one"
_NO_HANDLERS = ErrorHandlers()


@dataclass(frozen=True, slots=True)
class CompiledNodes:
    """The operators of one task.

    Args:
        operators: The operators by node name, in the order in which they must be initialised.
        entries: The functions that take the records of each source node.
        fusion: Makes the loops that process many records of a source.
    """

    task_id: TaskId
    operators: Mapping[str, Operator]
    contexts: Mapping[str, NodeContext]
    entries: Mapping[str, Callable[[Any, Any, int, Headers], None]]
    fusion: Fusion

    def init(self) -> None:
        for name, operator in self.operators.items():
            context = self.contexts[name]
            # Only schedules that `init` makes continue at the times of a predecessor.
            context.starting = True
            with user_code(f"init() of {name}", self.task_id):
                operator.init(context)
            context.starting = False

    def close(self) -> None:
        """Close all operators, and everything that they have opened, even if some fail."""
        # Connections of later operators are closed even if an earlier one fails.
        failures: list[StreamsError] = []
        for name, operator in self.operators.items():
            own = (operator.close,) if isinstance(operator, Closes) else ()
            for close in (*own, *self.contexts[name].opened):
                try:
                    with user_code(f"close() of {name}", self.task_id):
                        close()
                except StreamsError as error:
                    failures.append(error)
        if failures:
            raise failures[0]


def compile_nodes(
    sub: SubTopology,
    application_id: str,
    *,
    task_id: TaskId,
    context: TaskContext,
    collector: RecordCollector,
    stores: Mapping[str, Any],
    global_stores: Mapping[str, Any],
    failures: Failures,
    watch: Watch | None = None,
) -> CompiledNodes:
    """Build the operators of a task, children before parents, so that each is bound once."""
    inlets: dict[str, Forward] = {}
    operators = {node.name: instantiate(node, task_id) for node in sub.nodes if isinstance(node, ProcessorNode)}
    running = RunningNodes(
        sub=sub,
        operators=operators,
        inlets=inlets,
        sink_topics=plain_sinks(sub, application_id),
        stores=stores,
        task=named_objects(context, collector, watch),
        writer_of=writer_of,
        is_watched=watch is not None,
        reads_all=failures.asks_what_to_skip,
    )
    fusion = Fusion(running)
    retimed = below_retiming(sub, operators)
    contexts: dict[str, NodeContext] = {}
    # Children first: each operator is then bound once, to complete functions.
    for node in reversed(sub.nodes):
        below = {child.name: inlets[child.name] for child in running.children[node.name]}
        match node:
            case SinkNode():
                topic, is_internal = full_name_of(sub, application_id, node), node.topic in sub.repartition_topics
                inlets[node.name] = sink(node, topic, collector, failures, is_internal=is_internal)
            case SourceNode():
                inlets[node.name] = fan_out(list(below.values()))
            case ProcessorNode():
                accessible = {name: stores[name] for name in sub.store_access.get(node.name, ())}
                contexts[node.name] = NodeContext(
                    node=node.name,
                    application_id=application_id,
                    task_id=task_id,
                    task=context,
                    forward=fan_out(list(below.values())),
                    children=below,
                    stores={**global_stores, **accessible},
                    failures=failures,
                    watch=watch,
                )
                operator = operators[node.name]
                called = watched(operator.process, node.name, context, watch)
                process: Forward = failures.guarded(called, node.name)
                # Only stores take the time of the current record, which differs from the input's only below these nodes.
                inlets[node.name] = entering(process, context) if accessible and node.name in retimed else process
    entries = {source.name: inlets[source.name] for source in sub.sources}
    if not failures.needs_sources:
        entries = {name: fusion.forward(name) or plain for name, plain in entries.items()}
        bind_fused(running, fusion, contexts)
    return CompiledNodes(task_id, operators, contexts, entries, fusion)


def named_objects(context: TaskContext, collector: RecordCollector, watch: Watch | None) -> Mapping[str, Any]:
    """Return the objects of a task that generated functions name."""
    named = {
        "context": context,
        "punctuations": context.stream_punctuations,
        "nowhere": NO_RECORD,
        "send": collector.send,
        "partitions": collector.partitions,
        "reserved": RESERVED,
        "guarded": guarded,
    }
    return named if watch is None else named | {"enter": watch.enter, "leave": watch.leave}


def bind_fused(running: RunningNodes, fusion: Fusion, contexts: Mapping[str, NodeContext]) -> None:
    """Have operators that are not fused forward through generated functions, after the functions of sources have been made."""
    sub = running.sub
    cached = {store.name for store in sub.stores if store.caching}
    # Parents come first: only the functions above a node show whether it is called.
    for name in running.operators:
        own, used = contexts[name], sub.store_access.get(name, ())
        if not used and name not in running.called:
            continue
        own.forward = fusion.forward(name) or own.forward
        is_only = len(own.children) == 1
        own.children = {child: own.forward if is_only else fusion.entry(child) for child in own.children}
        if not cached.isdisjoint(used):
            own.flush = fusion.flush(name)


def instantiate(node: ProcessorNode, task_id: TaskId) -> Operator:
    """Return a new operator for a task; wrap a user's processor in one."""
    with user_code(f"The supplier of {node.name}", task_id):
        if node.is_operator:
            return cast("Operator", node.supplier())
        return UserProcessor(supplied(cast("Callable[[], Processor[Any, Any]]", node.supplier), PROCESSOR))


def below_retiming(sub: SubTopology, operators: Mapping[str, Operator]) -> frozenset[str]:
    """Return the nodes that may receive records with other times or headers than those of the input record."""
    # Only users' processors and operators with stores change these; all nodes below them may see the changes.
    found: set[str] = set()
    for node in sub.nodes:
        for parent in node.parents:
            is_users = isinstance(operators.get(parent), UserProcessor)
            if parent in found or sub.store_access.get(parent) or is_users:
                found.add(node.name)
    return frozenset(found)


def watched(process: Forward, node: str, context: TaskContext, watch: Watch | None) -> Forward:
    """Return a node's function that reports its calls to a watch; without a watch, the function itself."""
    if watch is None:
        return process
    enter, leave = watch.enter, watch.leave

    def look_on(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        call = enter(node, key, value, context.topic)
        process(key, value, timestamp, headers)
        leave(call)

    return look_on


def entering(process: Forward, context: TaskContext) -> Forward:
    """Make the forwarded record the current one, so that stores take its time (`ProcessorContextImpl.forward`)."""

    def entered(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        before = context.timestamp, context.headers
        context.timestamp, context.headers = timestamp, headers
        try:
            process(key, value, timestamp, headers)
        finally:
            context.timestamp, context.headers = before

    return entered


def fan_out(targets: Sequence[Forward]) -> Forward:
    """Return one function that sends to all targets, in order; a single target is called directly."""
    if len(targets) == 1:
        return targets[0]
    fixed = tuple(targets)

    def forward(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for target in fixed:
            target(key, value, timestamp, headers)

    return forward


def plain_sinks(sub: SubTopology, application_id: str) -> Mapping[str, str]:
    """Return the topics, by node name, of sinks that do not choose topics or partitions by users' functions."""
    sinks = (node for node in sub.nodes if isinstance(node, SinkNode))
    return {
        sink.name: full_name(sub, application_id, sink.topic)
        for sink in sinks
        if isinstance(sink.topic, str) and sink.partitioner is None
    }


def full_name_of(sub: SubTopology, application_id: str, node: SinkNode) -> str | Callable[[Any, Any, int], str]:
    """Return a sink's topic as Kafka knows it."""
    return full_name(sub, application_id, node.topic) if isinstance(node.topic, str) else node.topic


def sink(
    node: SinkNode,
    topic: str | Callable[[Any, Any, int], str],
    collector: RecordCollector,
    failures: Failures,
    *,
    is_internal: bool = False,
) -> Forward:
    """Return the function that partitions, serialises and sends the records of a sink (`RecordCollectorImpl.send`)."""
    send = guarding(collector.send) if is_internal else collector.send
    write, count = writer(node, send, failures, is_internal=is_internal), collector.partitions
    inner = node.key_serde.partition_key
    topic_of = topic if isinstance(topic, str) else ChosenTopic(node.name, topic, count)
    partitions_of = None if node.partitioner is None else ChosenPartitions(node.name, node.partitioner, count)

    def to_default(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        name = topic_of if isinstance(topic_of, str) else topic_of(key, value, timestamp)
        write(name, None, key, value, timestamp, headers)

    def to_chosen(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        name = topic_of if isinstance(topic_of, str) else topic_of(key, value, timestamp)
        where = cast("Any", partitions_of)(name, key, value)
        for partition in where:
            write(name, partition, key, value, timestamp, headers)
        if not where:
            failures.without_partition(name)

    def by_inner_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        name = topic_of if isinstance(topic_of, str) else topic_of(key, value, timestamp)
        try:
            hashed = None if key is None else cast("Any", inner)(key)
        except RegistryError:
            raise
        except USER_ERRORS as raised:
            error, origin = as_exception(raised), SerializationExceptionOrigin.KEY
            record, message = ProducerRecord(name, key, value, timestamp, headers), refused_text(node, name, key, error)
            failures.unserializable(node.name, record, origin, error, message, is_internal=is_internal)
            return
        where = None if hashed is None else partition_for(hashed, count(name))
        write(name, where, key, value, timestamp, headers)

    if partitions_of is not None:
        return to_chosen
    return to_default if inner is None else by_inner_key


def guarding(send: Send) -> Send:
    """Return a function that sends records to a repartition topic, where no headers make a record look like a pack."""

    def send_guarded(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        send(topic, key, value, timestamp, guarded(headers) if headers else headers, partition)

    return send_guarded


def writer(
    node: SinkNode, send: Send, failures: Failures, *, is_internal: bool = False
) -> Callable[[str, int | None, Any, Any, int, Headers], None]:
    """Return the function that serialises a record and sends it to a partition of a topic; None is Kafka's default."""
    key_bytes, value_bytes = node.key_serde.serialize, node.value_serde.serialize

    def write(topic: str, partition: int | None, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        origin = SerializationExceptionOrigin.KEY
        try:
            raw_key = None if key is None else key_bytes(key)
            origin = SerializationExceptionOrigin.VALUE
            raw_value = None if value is None else value_bytes(value)
        # A schema registry did not answer: the record is not to blame, so no handler may skip it.
        except RegistryError:
            raise
        except USER_ERRORS as raised:
            error = as_exception(raised)
            message = refused_text(
                node, topic, key, error, *(() if origin is SerializationExceptionOrigin.KEY else (value,))
            )
            record = ProducerRecord(topic, key, value, timestamp, headers, partition)
            failures.unserializable(node.name, record, origin, error, message, is_internal=is_internal)
            return
        # Refused before it is part of the transaction, so the handler may skip it exactly.
        try:
            send(topic, raw_key, raw_value, timestamp, headers, partition)
        except RefusedRecordError as error:
            record = ProducerRecord(topic, raw_key, raw_value, timestamp, headers, partition)
            failures.refused(node.name, record, error)

    return write


def refused_text(node: SinkNode, topic: str, key: Any, error: Exception, *value: Any) -> str:
    """Describe a key that a sink's serde refuses, or its value if one is passed."""
    part, serde = f"{type(key).__name__} key {shown(key)}", node.key_serde
    if value:
        part, serde = f"{type(value[0]).__name__} of key {shown(key)}", node.value_serde
    return f"Sink {node.name} cannot write the {part} to {topic}: {refusal(serde, error)}"


@dataclass(frozen=True, slots=True)
class FusedCode:
    """Functions that the tasks of a sub-topology generate.

    Args:
        functions: By node name, the text of each function that a node calls, or that processes many records.
        unfused: By node name, the reasons why nodes are called rather than written out.
    """

    sub_topology: int
    functions: Mapping[str, str]
    unfused: Mapping[str, str]

    def __str__(self) -> str:
        functions = "".join(f"\n# {name}\n{text}" for name, text in self.functions.items())
        calls = "".join(f"\n#   {name}: {why}" for name, why in self.unfused.items())
        return f"# Sub-topology {self.sub_topology}\n{functions}\n# Not fused:{calls or ' none'}\n"


def fused_code(
    topology: Topology, handlers: ErrorHandlers = _NO_HANDLERS, extractor: TimestampExtractor | None = None
) -> tuple[FusedCode, ...]:
    """Generate the code of a topology's tasks. Suppliers are called; nothing is initialised and no record is processed."""
    return tuple(sub_topology_code(sub, handlers, extractor) for sub in topology.sub_topologies())


def sub_topology_code(
    sub: SubTopology, handlers: ErrorHandlers = _NO_HANDLERS, extractor: TimestampExtractor | None = None
) -> FusedCode:
    """Generate the code of one sub-topology's tasks, as `fused_code` does for all."""
    context, task_id, backend = TaskContext(_NoClock()), TaskId(sub.id, 0), MemoryBackend()
    failures = Failures(handlers, context, task_id, _Nowhere().send)
    if failures.needs_sources:
        return FusedCode(sub.id, {}, dict.fromkeys((node.name for node in sub.nodes if node.parents), _PLAIN))
    stores = {builder.name: open_store(builder, backend, context) for builder in sub.stores}
    nodes = compile_nodes(
        sub,
        "app",
        task_id=task_id,
        context=context,
        collector=_Nowhere(),
        stores=stores,
        global_stores={},
        failures=failures,
    )
    for source in sub.sources:
        own = None if sub.repartition_topics.issuperset(source.topics) else extractor
        nodes.fusion.loop(source, has_extractor=(source.timestamp_extractor or own) is not None)
    unfused = nodes.fusion.reasons()
    single = {f"{node.name}, forward" for node in sub.nodes if node.name not in unfused}  # for single records
    functions = {name: text_of(made) for name, made in nodes.fusion.functions.items() if name not in single}
    return FusedCode(sub.id, functions, unfused)


class _NoClock:
    """A clock that is never read."""

    def now_ms(self) -> int:
        return 0


class _Nowhere:
    """Takes no records."""

    def send(self, *_record: object) -> None:
        """Ignore the record."""

    def partitions(self, topic: str) -> int:  # noqa: ARG002 - nothing is sent
        """Return 1 for every topic."""
        return 1
