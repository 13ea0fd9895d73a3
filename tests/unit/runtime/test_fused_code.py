"""Generated code can be seen: in tracebacks, and as text, with what is not part of it."""

from __future__ import annotations

import gc
import linecache
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from riverrun import (
    LONG,
    STRING,
    Branched,
    Consumed,
    Grouped,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    Serde,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    Topology,
)
from riverrun.codegen.function_writer import Writer
from riverrun.codegen.registry import WRITERS
from riverrun.generated import NotGenerated, block
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.runtime.compile import fused_code
from riverrun.testing import TopologyTestDriver
from riverrun.topology.assembly import add_operator
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.codegen.function_writer import EmitContext
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers

STRINGS = Produced(STRING, STRING)
MARK = "<riverrun fused: "


class Same(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class Twice:
    """An operator that sends each record twice: no class that fusion knows."""

    def init(self, context: OperatorContext) -> None:
        self.forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for _ in range(2):
            self.forward(key, value, timestamp, headers)


class Never(Twice):
    """An operator whose lines cannot be had."""


def lines_of_twice(_operator: Twice, at: EmitContext) -> str:
    return block("for _ in range(2):", at.below())


def lines_of_never(_operator: Never, at: EmitContext) -> str:
    message = f"{at.value} is not for it"
    raise NotGenerated(message)


def built(stream_name: str = "in") -> tuple[StreamsBuilder, KStream[str, str]]:
    builder = StreamsBuilder()
    return builder, builder.stream(stream_name, Consumed(STRING, STRING))


def failing(_value: str) -> str:
    message = "no such word"
    raise ValueError(message)


def failing_topology() -> Topology:
    builder, stream = built()
    stream.map_values(failing).to("out", STRINGS)
    return builder.build()


def listed() -> set[str]:
    gc.collect()
    return {name for name in linecache.cache if name.startswith(MARK) and linecache.getlines(name)}


def test_a_traceback_through_a_generated_loop_shows_its_line() -> None:
    with TopologyTestDriver(failing_topology()) as driver, pytest.raises(StreamsError) as raised:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "b")
    frames = traceback.extract_tb(present(raised.value.__cause__).__traceback__)
    (frame,) = [frame for frame in frames if frame.filename.startswith(MARK)]
    assert frame.filename.startswith("<riverrun fused: 0/KSTREAM-SOURCE-0000000000")
    assert "_mapper(" in (frame.line or "")


def test_code_is_kept_once_for_equal_tasks_and_as_long_as_one_of_them_is_there() -> None:
    before = listed()
    topology = failing_topology()
    one = TopologyTestDriver(topology)
    of_one = listed() - before
    for _ in range(3):
        with TopologyTestDriver(topology):
            assert listed() - before == of_one
    one.close()
    del one
    assert len(of_one) == 2
    assert listed() - before == set()


def test_functions_of_another_text_have_a_name_of_their_own() -> None:
    before = listed()
    builder, stream = built()
    stream.filter(lambda _key, _value: True).to("out", STRINGS)
    with TopologyTestDriver(failing_topology()), TopologyTestDriver(builder.build()):
        assert len({name for name in listed() - before if "SOURCE" in name and "forward" not in name}) == 2


def test_the_code_of_a_topology_is_shown_with_what_was_not_fused_and_why() -> None:
    builder, stream = built()
    stream.map_values(str.upper).process(Same).to("out", STRINGS)
    stream.to(lambda key, _value, _context: key, STRINGS)
    windowed_by = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    grouped.windowed_by(windowed_by).count(Materialized(name="windows"))
    grouped.count(Materialized(STRING, LONG, name="counts", caching=False))
    (code,) = fused_code(builder.build())
    (loop,) = [text for name, text in code.functions.items() if name.startswith("KSTREAM-SOURCE")]
    assert "for done in range(count):" in loop
    assert "aggregate = aggregate + 1" in loop
    assert sorted(code.unfused.values()) == [
        "UserProcessor does not write lines",
        "it chooses topics or partitions by a function",
        "its store has no cache that it may change in place",
    ]
    assert f"Sub-topology {code.sub_topology}" in str(code)
    assert loop in str(code)


@pytest.mark.parametrize("operator", [Twice, Never])
def test_an_operator_is_fused_if_a_writer_is_registered_for_its_class(
    operator: type[Twice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WRITERS, operator, Writer(lines_of_twice if operator is Twice else lines_of_never))
    topology = Topology().add_source("source", "in", key_serde=STRING, value_serde=STRING)
    add_operator(topology, "operator", operator, "source", functions=())
    topology.add_sink("sink", "out", "operator", key_serde=STRING, value_serde=STRING)
    (code,) = fused_code(topology)
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "b")
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
    assert found == [("a", "b"), ("a", "b")]
    assert list(code.unfused.values()) == ([] if operator is Twice else ["value is not for it"])
    (loop,) = [text for name, text in code.functions.items() if name == "source"]
    assert ("for _ in range(2):" in loop) == (operator is Twice)


def test_operators_with_nothing_below_them_are_fused() -> None:
    builder, stream = built()
    stream.split().branch(lambda _key, _value: True, Branched("one")).default_branch(Branched("two"))
    stream.merge(stream).filter(lambda _key, _value: True)
    (code,) = fused_code(builder.build())
    assert not code.unfused


def branched(stream: KStream[str, str]) -> KStream[str, str]:
    (way,) = stream.split().branch(lambda _key, _value: True, Branched("one")).no_default_branch().values()
    return way


ALONE: dict[str, Callable[[KStream[str, str]], KStream[str, str]]] = {
    "map values": lambda stream: stream.map_values(lambda value: value),
    "filter": lambda stream: stream.filter(lambda _key, _value: True),
    "flat map values": lambda stream: stream.flat_map_values(lambda value: [value]),
    "branch": branched,
}


@pytest.mark.parametrize("kind", ALONE)
def test_chains_of_operators_of_any_length_are_fused(kind: str, recursion_limit: int) -> None:
    builder, stream = built()
    for _ in range(2 * recursion_limit):
        stream = ALONE[kind](stream)
    stream.to("out", STRINGS)
    topology = builder.build()
    (code,) = fused_code(topology)
    assert not code.unfused
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "b"), ("c", "d")])
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
    assert found == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(("kind", "most"), [("map values", 1), ("filter", 2), ("flat map values", 7)])
def test_functions_begin_only_where_python_nests_no_deeper(kind: str, most: int) -> None:
    builder, stream = built()
    for _ in range(100):
        stream = ALONE[kind](stream)
    (code,) = fused_code(builder.build())
    assert len(code.functions) == most


def test_operators_below_merged_streams_are_one_function_for_all_of_these() -> None:
    builder, stream = built()
    merged = stream.merge(stream.filter(lambda _key, value: value != "b"))
    merged.map_values(str.upper).to("out", STRINGS)
    topology = builder.build()
    (code,) = fused_code(topology)
    assert not code.unfused
    assert sorted(name.split("-")[1] for name in code.functions) == ["MERGE", "SOURCE"]
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "b"), ("c", "d")])
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
    assert found == [("a", "B"), ("c", "D"), ("c", "D")]


class Anything:
    """A function that has any attribute, as objects of mocks have."""

    def __call__(self, value: str) -> str:
        return value.upper()

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def test_an_attribute_of_a_users_function_makes_no_lines_of_it() -> None:
    builder, stream = built()
    stream.map_values(Anything()).to("out", Produced(STRING, Serde("any", cast("Any", Anything()), bytes.decode)))
    (code,) = fused_code(builder.build())
    (loop,) = [text for name, text in code.functions.items() if name.startswith("KSTREAM-SOURCE")]
    assert "_mapper(value)" in loop


def test_with_a_handler_that_wants_input_records_nothing_is_fused() -> None:
    handlers = ErrorHandlers(processing=lambda *_: Response.fail())
    (code,) = fused_code(failing_topology(), handlers)
    assert not code.functions
    assert len(code.unfused) == 2
