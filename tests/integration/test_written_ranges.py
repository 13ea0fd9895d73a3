"""The ranges that the record of runs has for the attempts of one author, whatever others write to the topic."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TopicPartition
from riverrun.spark.runs import DIED, DONE, FAILED, RunLog, RunRecord

if TYPE_CHECKING:
    from tests.brokers import Broker

ENDS = (DONE, FAILED, DIED)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.broker), *range(1, 6)])
def test_ranges_are_those_of_the_runs_of_one_author(seed: int, broker: Broker, unique: str) -> None:
    """Runs of two authors, finished, failed or dead, between records that others write."""
    chance, topic = random.Random(seed), f"{unique}.out"
    broker.create(2, topic)
    admin = broker.admin()
    log, tps = RunLog(admin), [TopicPartition(topic, number) for number in range(2)]
    wanted, last_died = [], False

    def ends() -> dict[str, int]:
        return {str(tp): end for tp, end in admin.end_offsets(tps).items()}

    def write(most: int) -> None:
        count = chance.randint(0, most)
        if count:
            broker.write(topic, [(str(chance.random()).encode(), b"v", 1)] * count)

    for number in range(8):
        if (
            not last_died
        ):  # what others write after a death, before the next run, cannot be told from what the run wrote
            write(3)
        by, state, before = chance.choice("ab"), chance.choice(ENDS), ends()
        write(4)
        after = ends()
        last_died = state == DIED
        run = RunRecord(f"{number}", unique, "v1", by, number, f"in-0@0..{number}", outputs_before=before)
        log._put(run)
        if state != DIED:
            log._put(replace(run, state=state, ended_ms=1, outputs_after=after))
        grown = {name: (before[name], after[name]) for name in after if after[name] > before[name]}
        if by == "a" and grown:
            wanted.append((run.id, grown))
    found = [
        (run.id, {str(tp): (each.start, each.end) for tp, each in ranges[topic].ranges.items()})
        for run, ranges in log.written_by(unique, "v1", "a")
    ]
    assert found == wanted
    assert log.written_by(unique, "v2", "a") == log.written_by(unique, "v1", "nobody") == []
