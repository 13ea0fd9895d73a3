"""A chain of processors is a chain of nested calls, which Python limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, ProcessingError, Processor, Produced, Repartitioned, StreamsBuilder
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from riverrun import ProcessorContext, Record, Topology


class Forwards(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class CallsItself(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.process(record)


def chain(*lengths: int) -> Topology:
    """Chains of processors with a repartition between them."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    for number, length in enumerate(lengths):
        stream = stream.repartition(Repartitioned(STRING, STRING)) if number else stream
        for _ in range(length):
            stream = stream.process(Forwards)
    stream.to("out", Produced(STRING, STRING))
    return builder.build()


def piped(topology: Topology, settings: dict[str, object]) -> list[tuple[str | None, str | None]]:
    with TopologyTestDriver(topology, settings) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "b")
        return driver.output_topic("out", STRING, STRING).read_key_values_to_list()


@pytest.fixture(params=[{}, {"processing.exception.handler": "fail"}], ids=["unguarded", "guarded"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    found: dict[str, object] = request.param
    return found


def test_a_chain_that_is_too_long_is_explained(settings: dict[str, object], recursion_limit: int) -> None:
    with pytest.raises(ProcessingError) as raised:
        piped(chain(recursion_limit), settings)
    explained = re.search(r"after (\d+) processors in a row, Python's limit of (\d+) nested calls", str(raised.value))
    assert explained is not None
    passed, limit = map(int, explained.groups())
    assert passed < limit == recursion_limit
    assert "put a repartition() between them" in str(raised.value)


def test_a_repartition_begins_a_new_chain(settings: dict[str, object]) -> None:
    assert piped(chain(100, 100, 100, 100), settings) == [("a", "b")]


def test_a_processor_that_calls_itself_is_no_long_chain(settings: dict[str, object]) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).process(CallsItself)
    with pytest.raises(ProcessingError, match="RecursionError"):
        piped(builder.build(), settings)
