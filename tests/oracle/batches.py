"""Replays scenarios as workers run topologies: tasks with generated functions, many records at once, commits now and then."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import RawRecord, TopicPartition
from riverrun.runtime.state_manager import GlobalState
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from tests.oracle.replay import APPLICATION, compared_stores, entries_of, latin
from tests.task_runs import How, Running, Topics, specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun import Topology
    from tests.oracle.replay import Twin

RUN = 12
"""Greatest number of records that a task gets at once."""
COMMITS = 3
"""After so many runs of records, tasks commit."""


def in_batches(this: Twin, scenario: dict[str, Any]) -> dict[str, Any]:
    """Riverrun's results, in the form of `Twin.replayed`; all records have the index 0."""
    application = _Application(this.topology, is_cached=scenario["cache"])
    this.said.clear()
    for number, (topic, records) in enumerate(runs(scenario)):
        application.take(topic, records)
        if number % COMMITS == 0:
            application.commit()
    application.commit()
    stores = application.stores()
    topics = {topic: list(map(_entry, log)) for topic, log in application.written().items()}
    if this.said:
        topics["~said"] = [[0, None, words, -1, []] for words in this.said]
    found = {
        "topics": topics,
        "stores": {name: list(entries_of(stores[name])) for name in compared_stores(this.name)},
        "dropped": sum(task.task.dropped.total() for task in application.tasks),
    }
    application.close()
    return found


def runs(scenario: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Records that follow each other in one topic."""
    for topic, group in groupby(scenario["records"], key=lambda record: record[0]):
        records = list(group)
        for start in range(0, len(records), RUN):
            yield topic, records[start : start + RUN]


def _entry(record: RawRecord) -> list[Any]:
    headers = [[name, latin(data)] for name, data in record.headers]
    return [0, latin(record.key), latin(record.value), record.timestamp, headers]


class _Application:
    """All tasks of a topology, in memory."""

    def __init__(self, topology: Topology, *, is_cached: bool) -> None:
        clock = MockClock()
        self._topics = Topics()
        self._given: set[str] = set()
        self._global = GlobalState(
            topology, APPLICATION, backend=MemoryBackend(), clock=clock, handlers=ErrorHandlers()
        )
        how = How(batch=1 << 30, limit=1 << 30, is_cached=is_cached)
        self.tasks = [
            Running(spec, how, self._topics, clock, self._global.stores)
            for spec in specs(topology, {}, how, fused=True, application=APPLICATION)
        ]

    def take(self, topic: str, records: list[Any]) -> None:
        """Process records of a topic, and all that follow from them."""
        first = len(self._topics.logs.get(topic, []))
        for _, key, value, timestamp, headers in records:
            raw = tuple((name, text.encode()) for name, text in headers)
            key_bytes, value_bytes = (None if text is None else text.encode() for text in (key, value))
            self._topics.append(topic, key_bytes, value_bytes, timestamp, raw)
        log = self._topics.logs[topic]
        self._given.add(topic)
        if topic in self._global.topics:
            self._global.apply(TopicPartition(topic, 0), log[first:], len(log))
        self._process()

    def commit(self) -> None:
        """Commit every task, and process what its caches have forwarded."""
        while True:
            for task in self.tasks:
                task.commit()
            if not self._process():
                return

    def written(self) -> dict[str, list[RawRecord]]:
        """The records that tasks have written, by topic."""
        return {topic: log for topic, log in self._topics.logs.items() if topic not in self._given}

    def stores(self) -> dict[str, Any]:
        found = dict(self._global.stores)
        for task in self.tasks:
            found |= task.task.stores()
        return found

    def close(self) -> None:
        for task in self.tasks:
            task.task.close()
        self._global.close()

    def _process(self) -> bool:
        """Process all that has been written; return whether there was any."""
        found = False
        while [task for task in self.tasks if task.add()]:
            found = True
            for task in self.tasks:
                while task.task.process(1 << 30):
                    pass
        return found
