"""Generates the code of a sub-topology's tasks without running a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.generated import text_of
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import TaskId
from riverrun.runtime.context import TaskContext
from riverrun.runtime.failures import Failures
from riverrun.runtime.generating.compile import compile_nodes
from riverrun.state.backends.memory import MemoryBackend
from riverrun.state.stores.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

_PLAIN = "a handler for processing or production records takes records one by one"
_NO_HANDLERS = ErrorHandlers()


@dataclass(frozen=True, slots=True)
class FusedCode:
    """Functions that the tasks of a sub-topology generate.

    Args:
        sub_topology: Its id.
        functions: By node name, the text of each function that a node calls, or that processes many records.
        unfused: By node name, the reasons why nodes are called rather than written out.
    """

    sub_topology: int
    functions: Mapping[str, str]
    unfused: Mapping[str, str]

    def __str__(self) -> str:
        """Return all code as text."""
        functions = "".join(f"\n# {name}\n{text}" for name, text in self.functions.items())
        calls = "".join(f"\n#   {name}: {why}" for name, why in self.unfused.items())
        return f"# Sub-topology {self.sub_topology}\n{functions}\n# Not fused:{calls or ' none'}\n"


def fused_code(
    topology: Topology, handlers: ErrorHandlers = _NO_HANDLERS, extractor: TimestampExtractor | None = None
) -> tuple[FusedCode, ...]:
    """Generate the code of a topology's tasks. Suppliers are called; nothing is initialised and no record is processed.

    Args:
        topology: The topology.
        handlers: Handlers of records that cannot be read, processed or written.
        extractor: Finds event times of inputs whose source has no extractor.

    Returns:
        The code of each sub-topology, by id.

    Raises:
        ProcessingError: If a supplier fails.
    """
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
    written_out = {f"{name}, forward" for name in nodes.operators if name not in unfused}  # for single records
    made = nodes.fusion.functions
    functions = {name: text_of(function) for name, function in made.items() if name not in written_out}
    return FusedCode(sub.id, functions, unfused)


class _NoClock:
    """A clock that is never read."""

    def now_ms(self) -> int:
        """Return the epoch."""
        return 0


class _Nowhere:
    """Takes no records."""

    def send(self, *_record: object) -> None:
        """Ignore the record."""

    def partitions(self, topic: str) -> int:  # noqa: ARG002 - nothing is sent
        """Return 1 for every topic."""
        return 1
