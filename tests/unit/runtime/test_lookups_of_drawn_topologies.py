"""Topologies with look-ups give what they give with plain functions, whatever else is in them and whichever answer comes first.

A seed stands for a topology whose `map_values` and `flat_map_values` are look-ups, for its input, and for the times of answers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import KStream
from riverrun.dsl.kinds import with_key
from tests.task_runs import How, outcome, random_records
from tests.unit.runtime.drawn_topologies import STEPS, TOPICS, drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.task_runs import Outcome

SEEDS = [seed for seed in range(1000, 1180) if seed % 3]
"""Seeds whose functions do not fail: a failure stops a task before, or after, other records have gone on."""
PARTS = 4
_UNORDERED = {"look_up_outside", "look_up_many_outside"}


@pytest.mark.parametrize("part", range(PARTS))
def test_look_ups_have_the_results_of_plain_functions(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.runtime.drawn_topologies.STEPS", [step for step in STEPS if step not in _UNORDERED])
    compared = 0
    for seed in SEEDS[part::PARTS]:
        plain = run(seed, tmp_path / f"{seed}-plain")
        with monkeypatch.context() as patched:
            patched.setattr(KStream, "map_values", looked_up(Random(seed), "map_values_async"))
            patched.setattr(KStream, "flat_map_values", looked_up(Random(seed), "flat_map_values_async"))
            found = run(seed, tmp_path / f"{seed}-looked-up")
        assert (plain.error is None) == (found.error is None), f"seed {seed}: {plain.error} and {found.error}"
        if plain.error is None:
            compared += 1
            assert by_topic(found) == by_topic(plain), f"seed {seed}"
    assert compared > len(SEEDS) // PARTS // 2


def looked_up(source: Random, name: str) -> Callable[..., Any]:
    """The method that asks for what a plain function returns, and waits for a drawn time."""

    def call(stream: KStream[Any, Any], mapper: Callable[..., Any], **options: Any) -> Any:
        plain = with_key(mapper)

        async def fetch(key: Any, value: Any) -> Any:
            await asyncio.sleep(source.choice([0, 0, 1, 2, 5]))
            return plain(key, value)

        return getattr(stream, name)(fetch, max_in_flight=source.choice([1, 2, 5, 100]), **options)

    return call


def run(seed: int, files: Path) -> Outcome:
    files.mkdir()
    found, source = drawn(seed, files), Random(seed + 1)
    how, records = How.drawn(source), random_records(source, [*TOPICS, "fourth"])
    how = replace(how, commits=0.0, latest=False)
    read = {topic for declared in found.topology.global_stores for topic in declared.source.topics}
    inputs = {topic: log for topic, log in records.items() if topic in read | found.topology.external_topics}
    return outcome(found.topology, inputs, how, Random(seed), fused=True)


def by_topic(found: Outcome) -> dict[str, list[Any]]:
    """What was sent to each topic, in order; names of nodes in the names of topics do not count."""
    sent = defaultdict(list)
    for topic, *record in found.sent:
        sent[topic.replace("MAPVALUESASYNC", "MAPVALUES")].append(record)
    return dict(sent)
