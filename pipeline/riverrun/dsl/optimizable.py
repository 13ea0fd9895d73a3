"""Descriptions of nodes for the optimisations (the flags of `GraphNode`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two parts of the topology, and the nodes around it.

    Args:
        topic: Its name, without the application's prefix.
        filter: Name of the node that drops records without a key, unless a downstream node uses them.
        sink: Name of the node that writes the topic.
        source: Name of the node that reads the topic.
        key_serde: Serde of its keys.
        value_serde: Serde of its values.
        is_optimizable: Whether it may be merged with others. Topics that users asked for are not
            (`OptimizableRepartitionNode`).
    """

    topic: str
    filter: str
    sink: str
    source: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    is_optimizable: bool = True


@dataclass(frozen=True, slots=True)
class SelfJoin:
    """A join of a stream with itself.

    Args:
        this_windowed: Node that stores the left stream.
        other_windowed: Node that stores the right stream.
        this_join: Node that joins the left stream's records.
        other_join: Node that joins the right stream's records.
        merge: Node that forwards the results.
        this_store: Store of the left stream.
        other_stores: All other stores of the join.
        supplier: Returns the operator that replaces them all.
        functions: The user's functions within it.
    """

    this_windowed: str
    other_windowed: str
    this_join: str
    other_join: str
    merge: str
    this_store: str
    other_stores: tuple[str, ...]
    supplier: Callable[[], Operator]
    functions: tuple[Any, ...]


@dataclass(slots=True)
class Changes:
    """Effects of nodes on records.

    Args:
        of_keys: Nodes that may change keys, in order.
        of_values: Nodes that change values: a repartition may not move above them.
        merges: Nodes that merge streams, in order.
        repartitions: Repartitions by the name of their source, in order.
    """

    of_keys: dict[str, None] = field(default_factory=dict)
    of_values: set[str] = field(default_factory=set)
    merges: list[str] = field(default_factory=list)
    repartitions: dict[str, Repartition] = field(default_factory=dict)
