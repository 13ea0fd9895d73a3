"""Joins by foreign key end with the join of the final tables, however updates and answers overtake each other.

The test driver answers each request before the next record. Workers and bounded runs do not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.testing.driver import MockClock
from tests.task_runs import How, Running, Topics, specs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun import KTable, Topology

    Update = tuple[str, str, str | None]

KINDS = ["join", "left_join"]


def foreign_key(value: str) -> str | None:
    return value.partition("|")[2] or None


def pair(left: str | None, right: str | None) -> str:
    return f"({left},{right})"


def two_tables(kind: str) -> Topology:
    builder = StreamsBuilder()
    rows: Consumed[str, str] = Consumed(STRING, STRING)
    left, right = builder.table("left", rows), builder.table("right", rows)
    return joined(builder, left, right, kind)


def one_table(kind: str) -> Topology:
    builder = StreamsBuilder()
    table: KTable[str, str] = builder.table("left", Consumed(STRING, STRING))
    return joined(builder, table, table, kind)


def joined(builder: StreamsBuilder, left: KTable[str, str], right: KTable[str, str], kind: str) -> Topology:
    stored: Materialized[str, str] = Materialized(STRING, STRING, name="results")
    table: KTable[str, str] = getattr(left, kind)(right, pair, stored, foreign_key_extractor=foreign_key)
    table.to_stream().to("out", Produced(STRING, STRING))
    return builder.build()


class Application:
    """The tasks of a join, whose turns a test takes."""

    def __init__(self, topology: Topology, *, is_cached: bool) -> None:
        self.topics, how = Topics(), How(batch=1 << 30, is_cached=is_cached)
        self.tasks = [Running(spec, how, self.topics, MockClock(), {}) for spec in specs(topology, {}, how, fused=True)]
        self._time = 0

    def write(self, *updates: Update) -> None:
        for topic, key, value in updates:
            self._time += 1
            self.topics.append(topic, key.encode(), None if value is None else value.encode(), self._time)

    def process(self, limit: int = 1 << 30) -> bool:
        """Have each task process what has been written; tell whether there was any."""
        added = [task.add() for task in self.tasks]
        done = [task.task.process(limit) for task in self.tasks]
        return any(added) or any(done)

    def commit(self) -> None:
        for task in self.tasks:
            task.commit()

    def settle(self) -> None:
        """Process and commit until nothing is left."""
        for _ in range(100):
            self.commit()
            if not self.process():
                return
        pytest.fail("requests and answers follow each other without end")

    def results(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in self.topics.logs.get("out", []):
            assert record.key is not None
            key = record.key.decode()
            found.pop(key, None)
            if record.value is not None:
                found[key] = record.value.decode()
        stored = {key: row.value for task in self.tasks for key, row in task.task.stores().get("results", _NONE).all()}
        assert not stored or stored == found
        return found


class _Empty:
    def all(self) -> list[Any]:
        return []


_NONE = _Empty()


def expected(updates: Sequence[Update], kind: str, right: str) -> dict[str, str]:
    """The join of the tables that the updates leave."""
    tables: dict[str, dict[str, str]] = {"left": {}, "right": {}}
    for topic, key, value in updates:
        tables[topic].pop(key, None)
        if value is not None:
            tables[topic][key] = value
    others = {key: tables[right].get(foreign_key(row) or "") for key, row in tables["left"].items()}
    return {key: pair(row, others[key]) for key, row in tables["left"].items() if others[key] or kind == "left_join"}


JOINED: list[Update] = [("right", "A", "a"), ("left", "1", "x|A")]
LATER: dict[str, list[Update]] = {
    "two rows without a foreign key": [("left", "1", "y"), ("left", "1", "z")],
    "a deletion, and a row without a foreign key": [("left", "1", None), ("left", "1", "y")],
    "a row without a foreign key, and a deletion": [("left", "1", "y"), ("left", "1", None)],
    "two deletions": [("left", "1", None), ("left", "1", None)],
    "a deletion, and a row that finds nothing": [("left", "1", None), ("left", "1", "y|B")],
    "two rows that find nothing": [("left", "1", "y|B"), ("left", "1", "z|B")],
    "a row without a foreign key, and one that finds nothing": [("left", "1", "y"), ("left", "1", "z|B")],
    "another row, and a deletion of what it finds": [("left", "1", "y|A"), ("right", "A", None)],
    "a row that finds nothing, and one that finds something": [("left", "1", "y|B"), ("left", "1", "z|A")],
}


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_a_result_goes_whose_row_changes_again_before_the_answer(
    later: list[Update], kind: str, *, is_cached: bool
) -> None:
    application = Application(two_tables(kind), is_cached=is_cached)
    application.write(*JOINED)
    application.settle()
    assert application.results() == {"1": "(x|A,a)"}
    application.write(*later)
    for task in application.tasks[::-1]:  # the foreign table first: requests come after its updates
        task.add()
        while task.task.process(1):
            task.commit()
    application.settle()
    assert application.results() == expected([*JOINED, *later], kind, "right")


@pytest.mark.parametrize(("build", "right"), [(two_tables, "right"), (one_table, "left")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_updates_answers_and_commits_ends_with_the_join_of_the_tables(
    seed: int, kind: str, build: Callable[[str], Topology], right: str
) -> None:
    source = random.Random(seed)
    application = Application(build(kind), is_cached=source.random() < 0.5)
    updates = [_drawn(source, right, number) for number in range(60)]
    waiting = list(updates)
    while waiting:
        count = source.randrange(4)
        application.write(*waiting[:count])
        del waiting[:count]
        for task in source.sample(application.tasks, source.randrange(len(application.tasks) + 1)):
            task.add()
            task.task.process(source.choice([1, 2, 1 << 30]))
            if source.random() < 0.5:
                task.commit()
    application.settle()
    assert application.results() == expected(updates, kind, right)


def _drawn(source: random.Random, right: str, number: int) -> Update:
    if right == "right" and source.random() < 0.3:
        return "right", source.choice("AB"), source.choice([None, f"{number}"])
    keys = "12" if right == "right" else "ABC"
    return "left", source.choice(keys), source.choice([None, f"{number}", *(f"{number}|{name}" for name in "AABBC")])
