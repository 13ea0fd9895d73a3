"""Tasks with generated functions give what tasks give that take record by record, whatever the topology and the way to run it.

A seed stands for a topology, its input and a way to run it; a third of the topologies have functions that fail at some values.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import riverrun.operators
from riverrun import KStream, KTable
from riverrun.dsl.cogroup import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from riverrun.dsl.grouped_streams import KGroupedStream
from riverrun.dsl.grouped_tables import KGroupedTable
from riverrun.dsl.windowed_streams import SessionWindowedKStream, TimeWindowedKStream
from riverrun.runtime.compile import instantiate
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.state.api import StoreKind
from riverrun.topology.nodes import ProcessorNode
from tests.task_runs import How, outcome, random_records
from tests.unit.runtime.drawn_topologies import TOPICS, drawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun import Topology
    from tests.task_runs import Outcome

SEEDS = range(128)
PARTS = 8
OF_STREAMS = [KStream, KGroupedStream, TimeWindowedKStream, SessionWindowedKStream]
OF_COGROUPS = [CogroupedKStream, TimeWindowedCogroupedKStream, SessionWindowedCogroupedKStream]
DSL: list[type] = [*OF_STREAMS, *OF_COGROUPS, KTable, KGroupedTable]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_drawn_topology_does_what_record_by_record_does(part: int, tmp_path: Path) -> None:
    for seed in SEEDS[part::PARTS]:
        fused, plain = (run(seed, tmp_path / f"{seed}-{kind}", is_fused=kind) for kind in (True, False))
        assert fused.differs(plain) is None, f"seed {seed}"


def test_drawn_topologies_have_every_operator_and_every_kind_of_store(tmp_path: Path) -> None:
    topologies = [drawn(seed, tmp_path).topology for seed in SEEDS]
    found = {type(operator) for topology in topologies for operator in operators_of(topology)}
    assert set(operators()) - found == set()
    kinds = {store.kind for topology in topologies for store in topology.stores.values()}
    assert set(StoreKind) - kinds == set()


def test_drawn_topologies_call_every_method_of_streams_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()

    def noticed(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    methods = {
        (each, name): method
        for each in DSL
        for name, method in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("_")
    }
    for (each, name), method in methods.items():
        monkeypatch.setattr(each, name, noticed(f"{each.__name__}.{name}", method))
    for seed in SEEDS:
        drawn(seed, tmp_path)
    assert {f"{each.__name__}.{name}" for each, name in methods} - called == set()


def test_enough_of_the_drawn_runs_fail_and_enough_do_not(tmp_path: Path) -> None:
    ends = [run(seed, tmp_path / f"{seed}", is_fused=True).error is None for seed in SEEDS[:48]]
    assert 0.05 < ends.count(False) / len(ends) < 0.5


def run(seed: int, files: Path, *, is_fused: bool) -> Outcome:
    """Return the results of a seed's topology for the seed's records, in the seed's way."""
    files.mkdir()
    found, source = drawn(seed, files), Random(seed + 1)
    how, records = How.drawn(source), random_records(source, [*TOPICS, "fourth"])
    read = {topic for declared in found.topology.global_stores for topic in declared.source.topics}
    inputs = {topic: log for topic, log in records.items() if topic in read | found.topology.external_topics}
    result = outcome(found.topology, inputs, how, Random(seed), fused=is_fused)
    result.seen += [found.seen, {path.name: path.read_text("utf-8") for path in sorted(files.iterdir())}]
    return result


def operators() -> Iterator[type]:
    """All classes of operators."""
    for module in pkgutil.iter_modules(riverrun.operators.__path__, "riverrun.operators."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ == module.name and {"init", "process"} <= set(dir(found)):
                yield found


def operators_of(topology: Topology) -> Iterator[Any]:
    """The operators of a topology."""
    nodes = [node for sub in topology.sub_topologies() for node in sub.nodes]
    nodes += [declared.processor for declared in topology.global_stores]
    return (instantiate(node, GLOBAL_TASK) for node in nodes if isinstance(node, ProcessorNode))
