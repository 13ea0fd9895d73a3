"""Topologies with look-ups have the results that they have with plain functions, whichever answer comes first."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    Expression,
    Grouped,
    Joined,
    JoinWindows,
    KStream,
    Materialized,
    Produced,
    PunctuationType,
    Record,
    Stores,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.dsl.kinds import mapper_of, with_key
from tests.task_runs import How, outcome, random_records
from tests.unit.runtime.drawn_functions import ms
from tests.unit.runtime.drawn_topologies import STEPS, TOPICS, drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.processor.api import ProcessorContext
    from tests.task_runs import Outcome

    Stream = KStream[Any, Any]
    Map = Callable[[Stream], Stream]

TEXTS = Consumed(STRING, STRING)
TO_TEXTS = Produced(STRING, STRING)
BY_TEXT = Grouped(STRING, STRING)
SEEDS = range(40)
UNORDERED = {"look_up_outside", "look_up_many_outside"}


class Tick:
    """Tells of stream time, with each record and with each punctuation."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        self.context = context
        context.schedule(ms(20), PunctuationType.STREAM_TIME, self.tick)

    def process(self, record: Record[Any, Any]) -> None:
        place = self.context.record_metadata
        text = f"{record.value} of {place} at {self.context.current_stream_time_ms()}"
        self.context.forward(record.with_value(text))

    def tick(self, time_ms: int) -> None:
        self.context.forward(Record("tick", f"{time_ms}", time_ms))

    def close(self) -> None:
        pass


class Last:
    """Remembers the last value in a store, and shows the one before."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        self.context = context
        self.store: Any = context.get_state_store("last")

    def process(self, record: Record[Any, Any]) -> None:
        before = self.store.get("last")
        self.store.put("last", str(record.value))
        self.context.forward(record.with_value(f"{record.value} after {before}"))

    def close(self) -> None:
        pass


def keyed(stream: Stream) -> Stream:
    return stream.filter(lambda key, value: key is not None and value is not None)


def unchanged(stream: Stream) -> Stream:
    """The stream, on a way of its own, which is taken before those that are added later."""
    return stream.peek(lambda _key, _value: None)


def merged(_: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    unchanged(one).merge(look(one)).to("out", TO_TEXTS)


def merged_twice(_: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    look(one).merge(look(two)).merge(look(one)).to("out", TO_TEXTS)


def chained(_: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    once = look(one)
    unchanged(once).merge(look(once)).to("out", TO_TEXTS)


def merged_with_another(_: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    two.merge(look(one)).to("out", TO_TEXTS)


def joined_with_a_table(builder: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    table = builder.table("third", TEXTS)
    look(keyed(one)).left_join(table, lambda a, b: f"{a}/{b}", joined=Joined(STRING, STRING)).to("out", TO_TEXTS)


def joined_with_its_own_count(_: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    counts = keyed(one).group_by_key(BY_TEXT).count()
    look(keyed(one)).join(counts, lambda a, b: f"{a}/{b}", joined=Joined(STRING, STRING)).to("out", TO_TEXTS)


def joined_with_a_stream(_: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    options = StreamJoined(STRING, STRING, STRING)
    windows = JoinWindows.of(ms(20), grace=ms(5))
    look(keyed(one)).outer_join(keyed(two), lambda a, b: f"{a}/{b}", windows, joined=options).to("out", TO_TEXTS)


def punctuated(_: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    look(one).process(Tick).to("out", TO_TEXTS)


def punctuated_above(_: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    look(one.process(Tick)).merge(two).to("out", TO_TEXTS)


def written_twice(_: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    look(one).to("out", TO_TEXTS)
    two.to("out", TO_TEXTS)


def sharing_a_store(builder: StreamsBuilder, one: Stream, two: Stream, look: Map) -> None:
    builder.add_state_store(Stores.key_value_store("last", STRING, STRING))
    look(one).process(Last, "last").to("out", TO_TEXTS)
    two.process(Last, "last").to("other-out", TO_TEXTS)


def in_windows(_: StreamsBuilder, one: Stream, _two: Stream, look: Map) -> None:
    windows = TimeWindows.of(ms(20), grace=ms(10))
    stored: Materialized[Any, Any] = Materialized(STRING, STRING)
    counts = look(keyed(one)).group_by_key(BY_TEXT).windowed_by(windows)
    table = counts.aggregate(str, lambda _k, v, known: f"{known}{v}"[-20:], stored)
    table.to_stream(lambda key, _v: f"{key.key}{key.window.start}").to("out", TO_TEXTS)


SHAPES = [
    *(merged, merged_twice, chained, merged_with_another, joined_with_a_table, joined_with_its_own_count),
    *(joined_with_a_stream, punctuated, punctuated_above, written_twice, sharing_a_store, in_windows),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_look_ups_keep_the_order_that_plain_functions_have(shape: Callable[..., None]) -> None:
    for seed in SEEDS:
        plain, found = (run(built(shape, seed, is_looked_up=kind), seed) for kind in (False, True))
        assert (plain.error is None) == (found.error is None), f"seed {seed}: {plain.error}, {found.error}"
        if plain.error is None:
            assert by_topic(found) == by_topic(plain), f"seed {seed}"


def test_look_ups_of_drawn_topologies_have_the_results_of_plain_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.runtime.drawn_topologies.STEPS", [step for step in STEPS if step not in UNORDERED])
    for seed in range(
        1, 90, 3
    ):  # these do not fail: a failure stops a task before, or after, other records have gone on
        plain = drawn_run(seed, tmp_path / f"{seed}-plain")
        with monkeypatch.context() as patched:
            for name in ("map_values", "flat_map_values"):
                patched.setattr(KStream, name, looking(Random(seed), f"{name}_async"))
            found = drawn_run(seed, tmp_path / f"{seed}-looked-up")
        assert (plain.error is None) == (found.error is None), f"seed {seed}: {plain.error} and {found.error}"
        if plain.error is None:
            assert by_topic(found) == by_topic(plain), f"seed {seed}"


def built(shape: Callable[..., None], seed: int, *, is_looked_up: bool) -> Topology:
    builder, look = StreamsBuilder(), looking(Random(seed), "map_values_async")
    one, two = builder.stream("in", TEXTS), builder.stream("other", TEXTS)

    def mapped(stream: Stream) -> Stream:
        function = lambda key, value: f"<{key}{value}>"  # noqa: E731 - both ways take it
        found: Stream = look(stream, function) if is_looked_up else stream.map_values(function)
        return found

    shape(builder, one, two, mapped)
    return builder.build()


def looking(source: Random, name: str) -> Callable[..., Any]:
    """The method that asks for what a plain function returns, and waits for a drawn time; some ask for many at a time."""

    def call(stream: Stream, mapper: Callable[..., Any] | None = None, **options: Any) -> Any:
        columns = {key: options.pop(key) for key in [*options] if isinstance(options[key], Expression)}
        plain = with_key(mapper_of(mapper, columns))

        async def fetch(key: Any, value: Any) -> Any:
            await asyncio.sleep(source.choice([0, 0, 1, 2, 5]))
            return plain(key, value)

        async def fetch_all(keys: list[Any], values: list[Any]) -> list[Any]:
            await asyncio.sleep(source.choice([0, 0, 1, 2, 5]))
            return [plain(key, value) for key, value in zip(keys, values, strict=True)]

        if name == "map_values_async" and source.random() < 0.5:
            limits: dict[str, Any] = {"max_records": source.choice([1, 2, 5, 100])}
            limits["max_wait"] = ms(source.choice([0, 5, 25]))
            return stream.map_values_in_batches(fetch_all, timeout=ms(6_000), **limits, **options)
        return getattr(stream, name)(fetch, max_in_flight=source.choice([1, 2, 5, 100]), **options)

    return call


def drawn_run(seed: int, files: Path) -> Outcome:
    files.mkdir()
    return run(drawn(seed, files).topology, seed)


def run(topology: Topology, seed: int) -> Outcome:
    source = Random(seed)
    how = replace(How.drawn(source), commits=0.0, latest=False)
    records = random_records(source, [*TOPICS, "fourth"])
    read = {topic for declared in topology.global_stores for topic in declared.source.topics}
    inputs = {topic: log for topic, log in records.items() if topic in read | topology.external_topics}
    return outcome(topology, inputs, how, Random(seed), fused=True)


def by_topic(found: Outcome) -> dict[str, list[Any]]:
    """The records of each topic, in order; names of nodes in the names of topics do not count."""
    sent = defaultdict(list)
    for topic, *record in found.sent:
        sent[re.sub("MAPVALUES(ASYNC|INBATCHES)", "MAPVALUES", topic)].append(record)
    return dict(sent)
