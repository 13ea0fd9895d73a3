"""Sources of tables put values by lines of their loop as they do by calls of their store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import JSON, STRING, Consumed, Materialized, Produced, Serde, StreamsBuilder, StreamsError, TopicPartition
from riverrun.records import TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.key_value import KeyValueStateStore
from riverrun.state.values import StoredValues
from riverrun.testing.driver import MockClock
from tests.task_runs import Topics

if TYPE_CHECKING:
    from riverrun import Topology
    from riverrun.state.access import CachedPut

IN = TopicPartition("in", 0)


class Row(msgspec.Struct):
    """A value that can be changed."""

    n: int
    tags: list[int] = []


class Fixed(msgspec.Struct, frozen=True):
    """A value that cannot be changed."""

    n: int


WRITTEN = ('{"n":%d,"tags":[]}', '{"n":%d,"tags":[1]}', '{ "tags": [1], "n": %d }', '{"n":%d}', None)
"""As the serde writes rows, and as others do; and no value."""
STEPS = st.lists(
    st.one_of(
        *[st.tuples(st.sampled_from(["a", "A", "b"]), st.sampled_from(WRITTEN), st.integers(0, 20))] * 4,
        st.tuples(st.sampled_from(["commit", "forget", "fetch"]), st.none(), st.just(0)),
    ),
    max_size=40,
)
LOWER = Serde("lower", str.encode, lambda data: data.decode().lower())
"""Keys that may be written in several ways."""


class Run:
    """A task that materialises a table, and what came out of it."""

    def __init__(self, topology: Topology) -> None:
        self.topics, self.backend, self.offset = Topics(), MemoryBackend(), 0
        self.seen: list[Any] = []
        sub = topology.sub_topologies()[0]
        self.task = Task(TaskSpec(TaskId(0, 0), sub, "app", (IN,)), Ports(self.topics, self.backend, MockClock()))
        self.task.start({})

    @property
    def store(self) -> Any:
        return self.task._stores.stores["table"]

    def put(self, key: str, value: str | None, timestamp: int) -> None:
        data = None if value is None else value.encode()
        self.task.add_records(IN, [(key.encode(), data, timestamp, self.offset, (("n", b"%d" % self.offset),))])
        self.offset += 1
        self.task.process(1)

    def commit(self) -> None:
        self.task.prepare_commit()
        self.task.post_commit({})

    def step(self, what: str, value: str | None, number: int) -> None:
        if what == "commit":
            self.commit()
        elif what == "forget":
            self.store.forget_reads(0)
        elif what == "fetch":
            self.seen += [self.store.get("a"), self.store.get("b"), list(self.store.all())]
        else:
            self.put(what, value % number if value is not None else None, number)

    def results(self) -> Any:
        self.commit()
        tables = {name: list(self.backend.table(name).scan(None, None)) for name in self.backend.tables()}
        return self.topics.sent, self.seen, list(self.store.all()), tables


def call(_store: KeyValueStateStore) -> CachedPut | None:
    """Let sources call the store."""


def built(keys: Serde[str], values: Serde[Any], stored: Serde[Any] | None = None) -> Topology:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(keys, values), Materialized(keys, stored or values, name="table"))
    table.to_stream().to("out", Produced(STRING, stored or values))
    texts = table.map_values(str, Materialized(keys, STRING, name="texts"))
    texts.to_stream().to("texts", Produced(STRING, STRING))
    even = table.filter(lambda _key, row: row.n % 2 == 0)  # asks for old values
    even.to_stream().to("even", Produced(STRING, stored or values))
    return builder.build()


@pytest.mark.parametrize("keys", [STRING, LOWER], ids=["exact", "lower"])
@pytest.mark.parametrize("values", [JSON(Row), JSON(Fixed)], ids=["changeable", "fixed"])
def test_a_source_puts_values_as_its_store_does(keys: Serde[str], values: Serde[Any]) -> None:
    topology = built(keys, values)

    @settings(max_examples=80, deadline=None)
    @given(STEPS)
    def check(steps: list[tuple[str, str | None, int]]) -> None:
        runs = []
        for cached_put in (KeyValueStateStore.cached_put, call):
            with patch.object(KeyValueStateStore, "cached_put", cached_put):
                run = Run(topology)
                for step in steps:
                    run.step(*step)
                runs.append(run.results())
        assert runs[0] == runs[1]

    check()


@pytest.mark.parametrize(
    ("written", "compared"), [('{"n":1,"tags":[]}', 0), ('{"n": 1, "tags": []}', 2)], ids=["alike", "otherwise"]
)
def test_a_value_that_is_written_as_it_was_read_is_not_read_again(written: str, compared: int) -> None:
    run = Run(built(STRING, JSON(Row)))
    run.put("a", written, 1)
    with patch.object(StoredValues, "verify", autospec=True, side_effect=StoredValues.verify) as verify:
        run.put("a", written, 2)
        run.put("a", written, 3)
    assert verify.call_count == compared
    assert run.store.get("a").value == Row(1)


def test_a_store_with_a_serde_of_its_own_still_refuses_what_it_would_change() -> None:
    halved: Serde[Row] = Serde(
        "halved", msgspec.json.encode, lambda data: Row(msgspec.json.decode(data, type=Row).n // 2), exact=True
    )
    run = Run(built(STRING, JSON(Row), halved))
    run.put("a", '{"n":0,"tags":[]}', 1)
    with pytest.raises(StreamsError, match="comes back"):
        run.put("a", '{"n":4,"tags":[]}', 2)
