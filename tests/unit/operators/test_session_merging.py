"""Sessions to which a store adds records in one call are those that are found, merged, removed and put one by one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    SessionWindows,
    StreamsBuilder,
    TopicPartition,
    session_windowed,
)
from riverrun.records import TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.entries import ENTRY_OVERHEAD_BYTES
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.session import SessionStateStore
from riverrun.testing.driver import MockClock
from tests.depth import depth
from tests.task_runs import Topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import SessionWindowedKStream, Topology
    from riverrun.state.stores.session_merging import Merging

IN = TopicPartition("in", 0)
GAP, GRACE = timedelta(milliseconds=10), timedelta(milliseconds=15)
STEPS = st.lists(
    st.one_of(
        *[st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(1, 9))] * 6,
        st.tuples(st.sampled_from("ab"), st.integers(-30, 40), st.integers(-2, 9)),
        st.tuples(st.sampled_from(["commit", "flush", "forget", "reopen", "look"]), st.just(0), st.just(0)),
    ),
    max_size=50,
)
"""Keys, or what happens; ms since the record before; values."""
EXAMPLES = depth(60, 1000)
GROWN_AFTER_A_SEARCH = [
    ("a", 0, 1), ("forget", 0, 0), ("a", 11, 1), ("commit", 0, 0), ("a", -11, 1), ("a", 12, 1), ("look", 0, 0)
]  # fmt: skip
"""A session that was committed grows after a record that required a search: its old row must not be seen any more."""
FAILED_WITHIN = [("b", 1, 1), ("b", 9, 1), ("b", 0, -2)]
"""The user's function fails for a record within a session, which is removed before, and stays so."""


class UnhappyError(Exception):
    """Raised by a user's function."""


def picky(_key: str, value: int, total: int) -> int | None:
    """Deletes sessions now and then, and fails now and then."""
    if value == -2:
        raise UnhappyError
    return None if value == -1 else total + value


def counted(windows: SessionWindowedKStream[str, int]) -> Any:
    return windows.count(Materialized(name="sessions"))


def summed(windows: SessionWindowedKStream[str, int]) -> Any:
    return windows.aggregate(lambda: 0, picky, lambda _key, a, b: a + b, Materialized(STRING, LONG, name="sessions"))


def highest(windows: SessionWindowedKStream[str, int]) -> Any:
    return windows.reduce(max, Materialized(STRING, JSON(int), name="sessions"))


def gathered(windows: SessionWindowedKStream[str, int]) -> Any:
    """Aggregates that can be changed, and sometimes are texts."""

    def add(_key: str, value: int, known: Any) -> Any:
        if isinstance(known, str):
            return [value] if value == 9 else known + str(value)
        known.append(value)
        return known if value < 8 else "".join(map(str, known))

    def merge(_key: str, one: Any, other: Any) -> Any:
        return other if not one else [*one, *other]

    return windows.aggregate(list, add, merge, Materialized(STRING, JSON(Any), name="sessions"))


def built(aggregate: Callable[[SessionWindowedKStream[str, int]], Any], *, sends_old: bool) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, LONG)).group_by_key(Grouped(STRING, LONG))
    table = aggregate(stream.windowed_by(SessionWindows.of(GAP, grace=GRACE)))
    table.to_stream().to("out", Produced(session_windowed(STRING), JSON(Any)))
    if sends_old:  # the totals of a table subtract what an update replaces
        by_key = table.group_by(lambda key, value: (key.key, str(value)), Grouped(STRING, STRING))
        by_key.aggregate(
            list,
            lambda _k, v, all_: [*all_, v],
            lambda _k, v, all_: [*all_, "-" + v],
            Materialized(STRING, JSON(list[str]), name="values"),
        ).to_stream().to("changes", Produced(STRING, JSON(list[str])))
    return builder.build()


class Run:
    """A task, and what came out of it."""

    def __init__(self, topology: Topology, kept_bytes: int) -> None:
        self.topics, self.backend, self.kept_bytes = Topics(), MemoryBackend(), kept_bytes
        self.sub = topology.sub_topologies()[0]
        self.committed: Any = {}
        self.offset = self.time = 0
        self.seen: list[Any] = []
        self.open()

    def open(self) -> None:
        self.task = Task(TaskSpec(TaskId(0, 0), self.sub, "app", (IN,)), Ports(self.topics, self.backend, MockClock()))
        self.task._context.kept_bytes = self.kept_bytes
        self.task.start(self.committed)

    @property
    def store(self) -> SessionStateStore:
        return cast("SessionStateStore", self.task._stores.stores["sessions"])

    def commit(self) -> None:
        self.committed = dict(self.task.prepare_commit().offsets)
        self.task.post_commit({})

    def step(self, what: str, later: int, value: int) -> None:
        if what == "commit":
            self.commit()
        elif what == "flush":
            self.task._stores.flush()
        elif what == "forget":
            self.store.forget_reads(0)
        elif what == "reopen":
            self.commit()
            self.open()
        elif what == "look":
            found = self.store.find_sessions("a", 0, 10**6), self.store.backward_fetch("b"), self.store.all()
            self.seen.append([list(each) for each in found])
        else:
            self.time = max(0, self.time + later)
            record = (what.encode(), LONG.serialize(value), self.time, self.offset, (("n", b"%d" % self.offset),))
            self.offset += 1
            self.task.add_records(IN, [record])
            try:
                self.task.process(1)
            except Exception as error:  # noqa: BLE001 - the user's function failed: another owner would read the record again
                self.seen.append(str(error))

    def results(self) -> Any:
        self.commit()
        tables = {name: list(self.backend.table(name).scan(None, None)) for name in self.backend.tables()}
        return self.topics.sent, self.seen, list(self.store.all()), tables, self.store.expired_puts, self.task.dropped


def search(_store: SessionStateStore, _fold: Any) -> Merging | None:
    """Let operators find sessions, remove and put them."""


@pytest.mark.parametrize("sends_old", [False, True], ids=["new values", "old values"])
@pytest.mark.parametrize("aggregate", [counted, summed, highest, gathered])
def test_records_are_added_as_sessions_are_found_removed_and_put(
    aggregate: Callable[[SessionWindowedKStream[str, int]], Any], *, sends_old: bool
) -> None:
    topology = built(aggregate, sends_old=sends_old)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(STEPS, st.sampled_from([0, ENTRY_OVERHEAD_BYTES * 4, 10**7]))
    @example(GROWN_AFTER_A_SEARCH, 1400)
    @example(FAILED_WITHIN, 1400)
    def check(steps: list[tuple[str, int, int]], kept_bytes: int) -> None:
        runs = []
        for merging in (SessionStateStore.merging, search):
            with patch.object(SessionStateStore, "merging", merging):
                run = Run(topology, kept_bytes)
                for step in steps:
                    run.step(*step)
                runs.append(run.results())
        assert runs[0] == runs[1]

    check()


def test_a_session_that_grows_within_a_commit_is_not_looked_up_below_the_cache() -> None:
    run = Run(built(counted, sends_old=False), 10**7)
    run.step("a", 1_000, 1)
    run.commit()
    run.step("a", 1_000, 1)
    with patch.object(SessionStateStore, "find_sessions", side_effect=AssertionError):
        for _ in range(20):
            run.step("a", 5, 1)
            run.step("b", 3, 1)
    assert [(w.key, v) for w, v in run.store.all()] == [("a", 21), ("b", 20)]
    cache = run.store._core.cache
    assert cache is not None
    assert len(cache.dirty) == 2
