"""Values that were read are kept decoded for the next read, as many as memory allows, whether or not a commit comes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from riverrun import KStream, KTable

ORDERS = TopicPartition("orders", 0)
KEYS = 5_000
ENOUGH, TOO_LITTLE = 100_000_000, 1_000_000


class Watched(MemoryBackend):
    """Counts how often each key is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[bytes] = Counter()

    def table(self, name: str) -> Any:
        table, reads = super().table(name), self.reads

        class Table:
            def get(self, key: bytes) -> bytes | None:
                reads[key] += 1
                return table.get(key)

            def scan(self, lower: bytes | None, *rest: Any, **how: Any) -> Any:
                reads[lower or b""] += 1
                return table.scan(lower, *rest, **how)

        return Table()


def joined(orders: KStream[str, str], users: KTable[str, str]) -> None:
    orders.left_join(users, lambda order, user: f"{order} {user}").to("out", Produced(STRING, STRING))


def joined_one_by_one(orders: KStream[str, str], users: KTable[str, str]) -> None:
    joined(orders.peek(lambda _key, _order: None).flat_map_values(lambda order: [order]), users)


@pytest.mark.parametrize("join", [joined, joined_one_by_one])
@pytest.mark.parametrize("history", [None, timedelta(days=1)], ids=["plain", "versioned"])
@pytest.mark.parametrize(("kept_bytes", "is_read_again"), [(ENOUGH, False), (TOO_LITTLE, True)])
def test_what_is_looked_up_is_forgotten_before_it_takes_more_memory_than_it_may(
    join: Any, history: timedelta | None, kept_bytes: int, is_read_again: bool
) -> None:
    builder = StreamsBuilder()
    users = builder.table("users", Consumed(STRING, STRING), Materialized(name="users", history_retention=history))
    join(builder.stream("orders", Consumed(STRING, STRING)), users)
    (sub,) = builder.build().sub_topologies()
    backend = Watched()
    spec = TaskSpec(TaskId(0, 0), sub, "app", (ORDERS, TopicPartition("users", 0)), max_task_idle_ms=-1)
    task = Task(spec, Ports(MemoryTopics(), backend, MockClock(), {}))
    task.start({})
    task.set_cache_limit(kept_bytes)
    orders = [RawRecord(b"%04d" % n, b"order", n, n) for n in (*range(KEYS), *range(9))]
    task.add_records(ORDERS, orders)
    while task.process(500):
        pass
    assert (max(backend.reads.values()) > 1) is is_read_again
