"""Takes records through a task in memory, without a broker; says how long that took."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import msgspec
import steps
from events import tell
from inputs import Input, page_views
from rows import CALLED, PARTITIONS

from riverrun import StreamsBuilder, TopicPartition
from riverrun.codegen.fusion import Fusion
from riverrun.records import TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

_COMMITTED_TOGETHER = 25_000
"""So many records lie between two commits: those of 100 ms, more or less."""


class Nowhere:
    """Takes records, and forgets them."""

    def send(self, *_record: Any) -> None:
        pass

    def partitions(self, _topic: str) -> int:
        return PARTITIONS


def unfused() -> None:
    """Let tasks take record by record, and operators call each other."""
    for name in ("loop", "forward", "flush"):
        setattr(Fusion, name, lambda *_args, **_kwargs: None)


def main(topology: str, side: str, records: str, keys: str) -> None:
    if side == CALLED:
        unfused()
    sub, *_ = getattr(steps, topology)(StreamsBuilder()).sub_topologies()
    inputs = {topic: TopicPartition(topic, 0) for topic in sorted(sub.source_topics)}
    task = Task(
        TaskSpec(TaskId(0, 0), sub, "bench", tuple(inputs.values())), Ports(Nowhere(), MemoryBackend(), MockClock())
    )
    task.start({})
    source = Input(int(keys), "", 60_000, int(records))
    if steps.USERS in inputs:
        rows = [(f"user-{n:06}".encode(), b"country", 0, n, ()) for n in range(source.keys)]
        task.add_records(inputs[steps.USERS], rows)
        task.process_all()
    views = [
        (user.encode(), msgspec.json.encode([n, page, millis, ok]), timestamp, n, ())
        for n, user, timestamp, page, millis, ok in page_views(source, 0, source.records)
    ]
    gc.freeze()
    began, cpu_began = time.perf_counter(), time.process_time()
    for first in range(0, len(views), _COMMITTED_TOGETHER):
        task.add_records(inputs[steps.VIEWS], views[first : first + _COMMITTED_TOGETHER])
        task.process_all()
        task.prepare_commit()
        task.post_commit({})
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    tell("done", speed=len(views) / seconds, cpu=cpu_s / len(views) * 1_000_000)


if __name__ == "__main__":
    main(*sys.argv[1:])
