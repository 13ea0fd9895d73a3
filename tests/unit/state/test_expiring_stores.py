"""Stores of processors with a time to live: nobody reads an expired row, and the changelog has its deletion."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Processor,
    Produced,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
    ValueAndTimestamp,
)
from riverrun.errors import TopologyError
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing import TopologyTestDriver
from tests.changelogs import Batch
from tests.stores import CHANGELOG, Context, commit
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
LOG = "app-rows-changelog"
Command = tuple[str, int, bytes]
"""A key, an event time, and a value to put, `?` to get, `*` to list all keys, `-` to delete."""


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Commanded(Processor[str, str, str, str]):
    """Does with its store what records say, and forwards what it reads."""

    is_timed = False

    def init(self, context: Any) -> None:
        self.context = context
        self.rows = context.get_state_store("rows")

    def process(self, record: Record[str, str]) -> None:
        key, command, time = record.key, record.value, record.timestamp
        if command == "*":
            found = " ".join(key for key, _ in self.rows.all())
        elif command in "?-":
            found = str(self.rows.get(key) if command == "?" else self.rows.delete(key))
        else:
            self.rows.put(key, ValueAndTimestamp(command, time) if self.is_timed else command)
            found = str(self.rows.get(key))
        self.context.forward(Record(key, found, time))


class Timed(Commanded):
    is_timed = True


def commanded(ttl_ms: int | None, *, timed: bool = False, **options: Any) -> Topology:
    builder = StreamsBuilder()
    store_of: Any = Stores.timestamped_key_value_store if timed else Stores.key_value_store
    ttl = None if ttl_ms is None else ms(ttl_ms)
    builder.add_state_store(store_of("rows", STRING, STRING, ttl=ttl, **options))
    rows = builder.stream("in", TEXTS).process(Timed if timed else Commanded, "rows")
    rows.to("out", Produced(STRING, STRING))
    return builder.build()


class Plain:
    """A dict that is searched for expired rows before each command, as the store must not."""

    def __init__(self, ttl_ms: int, *, timed: bool) -> None:
        self.ttl_ms, self.is_timed, self.now = ttl_ms, timed, -1
        self.rows: dict[str, tuple[str, int]] = {}
        self.deleted: set[tuple[str, int]] = set()

    def expire(self) -> None:
        for key, (_, time) in list(self.rows.items()):
            if time + self.ttl_ms <= self.now:
                del self.rows[key]
                self.deleted.add((key, time + self.ttl_ms))

    def shown(self, key: str) -> str:
        if key not in self.rows:
            return "None"
        value, time = self.rows[key]
        return str(ValueAndTimestamp(value, time) if self.is_timed else value)

    def do(self, key: str, time: int, command: str) -> str:
        self.now = max(self.now, time)
        self.expire()
        if command == "*":
            return " ".join(sorted(self.rows))
        if command not in "?-":
            self.rows[key] = command, time if self.is_timed else self.now
            self.expire()
        found = self.shown(key)
        if command == "-":
            self.rows.pop(key, None)
            self.deleted.add((key, time))
        return found


COMMANDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.sampled_from([b"x", b"y", b"?", b"*", b"-"])), max_size=30
)


@pytest.mark.parametrize("caching", [False, True], ids=["written", "cached"])
@pytest.mark.parametrize("timed", [False, True], ids=["plain", "timestamped"])
@given(rows=COMMANDS, ttl_ms=st.integers(1, 25), cuts=st.sets(st.integers(0, 30), max_size=3), loses=st.booleans())
@example(rows=[("a", 50, b"x"), ("a", 5, b"y"), ("b", 59, b"?"), ("a", 60, b"*")], ttl_ms=10, cuts={2}, loses=True)
@example(rows=[("a", 0, b"x"), ("a", 9, b"x"), ("b", 18, b"*"), ("c", 19, b"*")], ttl_ms=10, cuts={3}, loses=False)
def test_a_store_expires_as_a_plain_model_says_whatever_restarts(
    timed: bool, caching: bool, rows: list[Command], ttl_ms: int, cuts: set[int], loses: bool
) -> None:
    task, plain = Restartable(commanded(ttl_ms, timed=timed, caching=caching)), Plain(ttl_ms, timed=timed)
    for start, end in pairwise([0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]):
        task.run(*rows[start:end])
        expected = [plain.do(key, time, command.decode()) for key, time, command in rows[start:end]]
        assert [(record.value or b"").decode() for record in task.written()] == expected
        log = {(record.key or b"").decode(): record for record in task.topics.logs.get(LOG, [])}
        kept = {key: (each.value.decode(), each.timestamp) for key, each in log.items() if each.value is not None}
        assert kept == plain.rows
        assert {(key, each.timestamp) for key, each in log.items() if each.value is None} <= plain.deleted
        if loses:
            task.lose_state()


def test_the_driver_shows_rows_until_they_expire_and_forwards_nothing() -> None:
    with TopologyTestDriver(commanded(10), application_id="app") as driver:
        piped = driver.input_topic("in", STRING, STRING)
        for key, value, time in [("a", "x", 0), ("b", "y", 9), ("c", "z", 10)]:
            piped.pipe_input(key, value, timestamp=time)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["x", "y", "z"]
        store = driver.get_key_value_store("rows")
        assert (store.get("a"), store.get("b")) == (None, "y")
        assert [key for key, _ in store.all()] == ["b", "c"]
        assert store.approximate_num_entries() == 2
        piped.pipe_input("a", "?", timestamp=19)
        assert [key for key, _ in store.all()] == ["c"]
        log = {record.key: record.value for record in driver.read_raw("app-rows-changelog")}
        assert log == {b"a": None, b"b": None, b"c": b"z"}


def test_the_changelog_has_the_bytes_of_a_store_without_ttl_and_deletions() -> None:
    logs = []
    for ttl_ms in (None, 10):
        task = Restartable(commanded(ttl_ms))
        task.run(("a", 0, b"x"), ("b", 9, b"y"))
        task.run(("c", 10, b"z"))
        logs.append([(each.key, each.value, each.timestamp) for each in task.topics.logs[LOG]])
    without, with_ttl = logs
    assert with_ttl == [*without, (b"a", None, 10)] or sorted(with_ttl, key=str) == sorted(
        [*without, (b"a", None, 10)], key=str
    )


def test_the_times_of_rows_go_with_the_rows() -> None:
    task = Restartable(commanded(10))
    task.run(("a", 0, b"x"), ("b", 4, b"x"), ("c", 5, b"x"), ("c", 6, b"-"))
    task.run(("d", 10, b"?"))
    assert [key for key, _ in task.backend.table("rows/times").scan(None, None)] == [b"b"]


def test_rows_written_without_a_ttl_live_from_when_they_are_first_seen() -> None:
    task = Restartable(commanded(None))
    task.run(("a", 0, b"x"))
    task.topology = commanded(10)
    task.run(("b", 30, b"y"), ("a", 39, b"?"), ("a", 40, b"?"))
    assert [record.value for record in task.written()][1:] == [b"y", b"x", b"None"]
    task.run(("b", 41, b"*"))
    assert task.written()[-1].value == b""


def test_another_ttl_applies_to_the_rows_that_are_there() -> None:
    for loses in (False, True):
        task = Restartable(commanded(10))
        task.run(("a", 0, b"x"), ("b", 4, b"y"))
        if loses:
            task.lose_state()
        task.topology = commanded(5)
        task.run(("c", 5, b"*"))
        assert task.written()[-1].value == b"b"
        task.topology = commanded(100)
        task.run(("c", 30, b"*"))
        assert task.written()[-1].value == b"b"


def test_punctuations_write_at_stream_time_whatever_clock_calls_them() -> None:
    class Ticking(Processor[str, str, str, int]):
        def init(self, context: Any) -> None:
            self.rows = context.get_state_store("rows")
            context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, lambda now: self.rows.put("t", now))

        def process(self, _record: Record[str, str]) -> None:
            self.rows.put_if_absent("first", 1)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("rows", STRING, LONG, ttl=ms(10)))
    builder.stream("in", TEXTS).process(Ticking, "rows")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=5)
        driver.advance_wall_clock_time(timedelta(seconds=1))
        store = driver.get_key_value_store("rows")
        assert [key for key, _ in store.all()] == ["first", "t"]
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=15)
        assert [key for key, _ in store.all()] == ["first"]


def test_a_standby_keeps_what_its_owner_has_not_deleted() -> None:
    builder = Stores.key_value_store("rows", STRING, STRING, ttl=ms(10))
    backend, context = MemoryBackend(), Context(stream_time=3)
    owner: Any = open_store(builder, backend, context)
    owner.put("a", "x")
    log = commit(owner, backend)
    other = MemoryBackend()
    follower: Any = open_store(builder, other, Context())
    other.write(follower.restore(Batch(log)), {CHANGELOG: 1})
    assert follower.get("a") == "x"
    context.stream_time = 13
    other.write(follower.restore(Batch(commit(owner, backend, 1))), {CHANGELOG: 2})
    assert (owner.get("a"), follower.get("a")) == (None, None)


def test_a_store_without_a_ttl_is_what_it_was() -> None:
    plain: Any = open_store(Stores.key_value_store("rows", STRING, STRING), MemoryBackend(), Context())
    assert type(plain).__name__ == "KeyValueStateStore"
    known = StreamsBuilder().add_state_store(Stores.key_value_store("rows", STRING, STRING))
    known.stream("in", TEXTS).process(Commanded, "rows")
    assert "ttl" not in known.build().describe()


def test_the_fingerprint_and_the_description_tell_times_to_live_of_stores() -> None:
    assert len({commanded(ttl_ms).fingerprint() for ttl_ms in (None, 1, 2)}) == 3
    assert "(stores: [rows (ttl: 10 ms)])" in commanded(10).describe()


def test_a_ttl_of_a_store_that_cannot_keep_it_is_refused() -> None:
    living = Stores.key_value_store("rows", STRING, STRING, ttl=ms(1))
    limited = Stores.lru_map("rows", 5)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: Stores.key_value_store(limited, STRING, STRING, ttl=ms(1)), "cannot have max_entries"),
        (lambda: Stores.key_value_store("rows", STRING, STRING, ttl=ms(0)), "ttl must be positive"),
        (lambda: Stores.key_value_store("rows", STRING, STRING, ttl=5), "must be a timedelta"),  # type: ignore[arg-type]
        (lambda: Stores.timestamped_key_value_store("rows", STRING, STRING, ttl=ms(-1)), "ttl must be a non-negative"),
        (lambda: StreamsBuilder().add_global_store(living, "in", TEXTS, Commanded).build(), "rows cannot have a ttl"),
        (
            lambda: Topology().add_read_only_state_store(
                living,
                "in",
                source_name="s",
                processor_name="p",
                supplier=Commanded,
                key_serde=STRING,
                value_serde=STRING,
            ),
            "rows cannot have a ttl: a topic fills it",
        ),
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
