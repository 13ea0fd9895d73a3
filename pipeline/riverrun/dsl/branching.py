"""`KStream.split()`: splits one stream into several (`BranchedKStreamImpl`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.arguments import function, optional, refuse_unstarted
from riverrun.dsl.kinds import STREAM, checked, checked_fields
from riverrun.dsl.options import validate_name
from riverrun.errors import TopologyError
from riverrun.operators.stateless import Branch, PassThrough
from riverrun.topology.assembly import add_operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.plan import Plan
    from riverrun.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")


@checked_fields(function=optional(function("stream")), consumer=optional(function("stream")))
@dataclass(frozen=True)
class Branched(Generic[K, V]):
    """Names a branch, and processes it in place (`org.apache.kafka.streams.kstream.Branched`).

    Args:
        name: Suffix of the branch's name; by default its number.
        function: Called with the branch; returns the stream to report instead, or None to report none.
        consumer: Called with the branch, which is then not reported.

    Raises:
        TopologyError: If the name is illegal, or there are both a function and a consumer.
    """

    name: str | None = None
    function: Callable[[KStream[K, V]], KStream[Any, Any] | None] | None = None
    consumer: Callable[[KStream[K, V]], object] | None = None

    def __post_init__(self) -> None:
        validate_name(self.name)
        if self.function is not None and self.consumer is not None:
            raise TopologyError("Branched takes a function or a consumer, not both")


@dataclass(slots=True)
class BranchedKStream(Generic[K, V]):
    """A stream that is being split (`org.apache.kafka.streams.kstream.BranchedKStream`).

    A record goes only to the branch of the first predicate that holds. If none holds, it goes to the default branch, if
    there is one. End with `default_branch` or `no_default_branch`, which return the branches by name.
    """

    _plan: Plan
    _splitter: str
    _stream_of: Callable[[str], KStream[K, V]]
    """Creates the stream of a node's output."""
    _predicates: list[Callable[[K, V], bool]] = field(default_factory=list)
    _children: list[str] = field(default_factory=list)
    _streams: dict[str, KStream[K, V]] = field(default_factory=dict)
    _has_default: bool = False

    @classmethod
    def of(
        cls, plan: Plan, parent: str, splitter: str, stream_of: Callable[[str], KStream[K, V]]
    ) -> BranchedKStream[K, V]:
        """Start to split the output of `parent`. The node `splitter` does it, and its name begins the branches' names."""
        branched: BranchedKStream[K, V] = cls(plan, splitter, stream_of)
        plan.add_step(lambda topology: branched._write(topology, parent))
        return branched

    @checked()
    def branch(
        self, predicate: Callable[[K, V], bool], branched: Branched[K, V] | None = None
    ) -> BranchedKStream[K, V]:
        """Add a branch for records that satisfy `predicate(key, value)` and no earlier predicate.

        Args:
            predicate: Selects the records of the branch.
            branched: Its name, and a function to process it in place. Unnamed branches are numbered from 1.

        Raises:
            TopologyError: If the default branch exists already.
        """
        if self._has_default:
            message = "The default branch must be the last one"
            raise TopologyError(message, hint="Call branch() before default_branch().")
        self._predicates.append(predicate)
        self._add(branched, len(self._predicates))
        return self

    @checked()
    def default_branch(self, branched: Branched[K, V] | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for all other records.

        Args:
            branched: Its name, and a function to process it in place.

        Returns:
            All branches by name, as `no_default_branch` does.

        Raises:
            TopologyError: If the default branch exists already.
        """
        if self._has_default:
            raise TopologyError("There is a default branch already")
        self._has_default = True
        self._add(branched, 0)
        return self._streams

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """End without a branch for other records, which are dropped.

        Returns:
            The branches by name: the splitter's name, followed by the branch's own name or number. Branches with a
            consumer, or whose function returned None, are left out.
        """
        return self._streams

    def _add(self, branched: Branched[K, V] | None, index: int) -> None:
        options: Branched[K, V] = branched or Branched()
        child = f"{self._splitter}{options.name if options.name is not None else index}"
        self._children.append(child)
        # Kafka Streams generates a name here that it does not use.
        self._plan.counter += 1
        splitter = self._splitter
        self._plan.add_step(lambda topology: add_operator(topology, child, PassThrough, splitter, functions=()))
        stream = self._stream_of(child)
        if options.consumer is not None:
            refuse_unstarted(options.consumer(stream), f"The consumer of {child}", TopologyError)
            return
        result: Any = stream if options.function is None else options.function(stream)
        if result is None:
            return
        complaint = STREAM.complaint(result)
        if complaint is not None:
            raise TopologyError(f"The result of the function of {child} {complaint}")
        self._streams[child] = result

    def _write(self, topology: Topology, parent: str) -> None:
        # Only at `build()`: branches are added after the step.
        predicates, children = tuple(self._predicates), tuple(self._children)
        add_operator(topology, self._splitter, lambda: Branch(predicates, children), parent, functions=predicates)
