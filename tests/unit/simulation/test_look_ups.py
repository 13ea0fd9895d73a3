"""Look-ups in a cluster: they take its time, and nothing is lost or doubled if a worker is killed between them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

COUNT = 60
KEYS = "ab"


async def later(value: str) -> str:
    await asyncio.sleep(int(value) % 5 / 10)
    return f"{value}!"


def at_once(value: str) -> str:
    return f"{value}!"


async def all_later(values: list[str]) -> list[str]:
    await asyncio.sleep(0.2)
    return [f"{value}!" for value in values]


WAYS: dict[str, Callable[[Any], Any]] = {
    "each": lambda texts: texts.map_values_async(later),
    "in a thread": lambda texts: texts.map_values_async(at_once),
    "in batches": lambda texts: texts.map_values_in_batches(
        all_later, max_records=7, max_wait=timedelta(milliseconds=50)
    ),
}


def history(build: Callable[[StreamsBuilder], Topology], seed: int) -> tuple[list[tuple[Any, Any]], int]:
    """The records written with a kill and a bounded run in between, and a checksum of all turns."""
    written: list[tuple[Any, Any]] = []
    with Cluster(seed=seed) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=2)
        app, texts = cluster.project().app("looking", build), cluster.input_topic("in", STRING, STRING)
        outputs = cluster.output_topic("out", STRING, STRING)

        def has(count: int) -> bool:
            written.extend(outputs.read_key_values_to_list())
            return len(written) >= count

        def pipe(start: int) -> None:
            texts.pipe_key_value_list([(KEYS[n % 2], str(n)) for n in range(start, start + COUNT)])

        pipe(0)
        first = cluster.start_worker(app, "first")
        cluster.wait_until(lambda: has(1), timedelta(minutes=5))
        first.kill()
        pipe(COUNT)
        second = cluster.start_worker(app, "second")
        cluster.wait_until(lambda: has(2 * COUNT), timedelta(minutes=5))
        second.stop(timedelta(minutes=1))
        pipe(2 * COUNT)
        app.run()
        assert has(3 * COUNT)
        return written, cluster.turns.trace


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_and_a_run_look_up_each_record_once(way: str) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        WAYS[way](builder.stream("in", Consumed(STRING, STRING))).to("out", Produced(STRING, STRING))
        return builder.build()

    written, turns = history(build, seed=3)
    for number, key in enumerate(KEYS):
        assert [value for found, value in written if found == key] == [f"{n}!" for n in range(number, 3 * COUNT, 2)]
    if way == "in batches":
        assert history(build, seed=3) == (written, turns), "a seed repeats its history"
