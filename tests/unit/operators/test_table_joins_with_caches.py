"""Joins of tables end with one table, whether caches hold updates back or not."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder, TopicPartition
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec, full_name
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun import KTable
    from riverrun.topology.nodes import SubTopology

    Update = tuple[str, str, str | None]
    Tables = dict[str, KTable[str, str]]

TOPICS = ("a", "b", "c")
KEYS, VALUES = ("k", "l"), ("x", "y", "hidden", None)


def inner(tables: Tables) -> KTable[str, str]:
    return tables["a"].join(tables["b"], lambda one, other: one + other)


def left(tables: Tables) -> KTable[str, str]:
    return tables["a"].left_join(tables["b"], lambda one, other: f"{one}{other}")


def outer(tables: Tables) -> KTable[str, str]:
    return tables["a"].outer_join(tables["b"], lambda one, other: f"{one}{other}")


def mapped(tables: Tables) -> KTable[str, str]:
    """Tables that are computed from others, which lack some of their rows."""
    one = tables["a"].map_values(lambda value: value + "!")
    return one.join(tables["b"].filter(lambda _key, value: value != "hidden"), lambda one, other: one + other)


def three(tables: Tables) -> KTable[str, str]:
    return inner(tables).join(tables["c"], lambda one, other: one + other)


def three_the_other_way(tables: Tables) -> KTable[str, str]:
    return tables["c"].join(inner(tables), lambda one, other: one + other)


def stored(tables: Tables) -> KTable[str, str]:
    return tables["a"].join(tables["b"], lambda one, other: one + other, Materialized(STRING, STRING, name="joined"))


class Sent(list[tuple[Any, ...]]):
    """Keeps what a task sends."""

    def send(self, *record: Any) -> None:
        self.append(record)

    def partitions(self, _topic: str) -> int:
        return 1


def started(sub: SubTopology, sent: Sent) -> tuple[Task, dict[str, TopicPartition]]:
    """A task of a sub-topology, and its inputs."""
    tps = {full_name(sub, "app", topic): TopicPartition(full_name(sub, "app", topic), 0) for topic in sub.source_topics}
    task = Task(TaskSpec(TaskId(sub.id, 0), sub, "app", tuple(tps.values())), Ports(sent, MemoryBackend(), MockClock()))
    task.start({})
    return task, tps


def take(task: Task, tp: TopicPartition, key: bytes, value: bytes | None, offset: int) -> None:
    task.add_records(tp, [RawRecord(key, value, offset, offset)])
    task.process_all()


def commit(task: Task) -> None:
    task.prepare_commit()
    task.post_commit({})


@cache
def parts(build: Callable[[Tables], KTable[str, str]], *, cached: bool) -> tuple[SubTopology, SubTopology]:
    """The part of a topology that joins tables, and the one that counts how many keys have each result."""
    builder = StreamsBuilder()
    tables: Tables = {
        topic: builder.table(topic, Consumed(STRING, STRING), Materialized(name=f"store-{topic}", caching=cached))
        for topic in TOPICS
    }
    joined = build(tables)
    joined.to_stream().to("out", Produced(STRING, STRING))
    counts = joined.group_by(lambda key, value: (value, key), Grouped(STRING, STRING, name="by-result")).count()
    counts.to_stream().to("counts", Produced(STRING, LONG))
    subs = {each.id: each for each in builder.build().sub_topologies()}
    below = next(each for each in subs.values() if each.repartition_topics.issuperset(each.source_topics))
    return next(each for each in subs.values() if "a" in each.source_topics), below


def results(
    build: Callable[[Tables], KTable[str, str]], commits: Sequence[Sequence[Update]], *, cached: bool
) -> tuple[dict[str, str], dict[str, int]]:
    """The last results by key; and how many keys have each result, as a table below counts them."""
    above, below = parts(build, cached=cached)
    sent, counted = Sent(), Sent()
    (task, tps), (counting, (repartition,)) = started(above, sent), started(below, counted)
    updates = ((number, each) for number, part in enumerate(commits) for each in part)
    done = 0
    for offset, (number, (topic, key, value)) in enumerate(updates):
        if number > done:
            commit(task)
            done = number
        if topic in tps:
            take(task, tps[topic], key.encode(), None if value is None else value.encode(), offset)
    commit(task)
    for offset, (topic, raw_key, raw_value, *_) in enumerate(sent):
        if topic == repartition:
            take(counting, TopicPartition(repartition, 0), raw_key, raw_value, offset)
    commit(counting)
    last = {raw_key.decode(): raw_value for topic, raw_key, raw_value, *_ in sent if topic == "out"}
    many = {
        raw_key.decode(): LONG.deserialize(raw_value) for topic, raw_key, raw_value, *_ in counted if topic == "counts"
    }
    found = {key: value.decode() for key, value in last.items() if value is not None}
    return found, {result: count for result, count in many.items() if count}


updates = st.tuples(st.sampled_from(TOPICS), st.sampled_from(KEYS), st.sampled_from(VALUES))


@pytest.mark.parametrize("build", [inner, left, outer, mapped, three, three_the_other_way, stored])
@settings(max_examples=150)
@given(commits=st.lists(st.lists(updates, max_size=8), max_size=6))
def test_the_last_results_are_those_of_tables_without_caches(
    build: Callable[[Tables], KTable[str, str]], commits: list[list[Update]]
) -> None:
    found, counts = results(build, commits, cached=True)
    assert found == results(build, commits, cached=False)[0]
    assert counts == Counter(found.values())


@pytest.mark.parametrize("build", [inner, mapped, stored])
def test_two_deletions_in_one_commit_delete_the_result(build: Callable[[Tables], KTable[str, str]]) -> None:
    commits: list[list[Update]] = [[("a", "k", "x"), ("b", "k", "y")], [("a", "k", None), ("b", "k", None)]]
    found, counts = results(build, commits[:1], cached=True)
    assert list(counts.values()) == [1]
    assert list(found) == ["k"]
    assert results(build, commits, cached=True) == ({}, {})
