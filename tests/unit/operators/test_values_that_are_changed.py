"""Users' functions may change what they are given and what they have put: no store, and no later call, sees that."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from riverrun import (
    JSON,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopicPartition,
    Window,
    Windowed,
)
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, ProcessorContext, Record, Serde

pytestmark = pytest.mark.filterwarnings("ignore::riverrun.testing.ChangedValueWarning")
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
RECORDS = [("a", "v"), ("b", "w"), ("a", "x"), ("a", "y"), ("b", "z"), ("a", "u"), ("b", "t"), ("a", "s")]


@dataclass
class Row:
    """A value with fields that may be set."""

    seen: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    """Another one."""

    seen: list[str] = []


@dataclass(frozen=True)
class Kind:
    """One sort of values that can be changed.

    Args:
        serde: Writes them.
        make: A new one with these texts.
        seen: The list within one.
        copies: Whether functions change copies: then nothing is changed that is anybody else's.
    """

    serde: Serde[Any]
    make: Callable[[list[str]], Any]
    seen: Callable[[Any], list[str]]
    copies: bool = False

    def add(self, value: Any, *texts: str) -> Any:
        """Change a value, and return it."""
        value = deepcopy(value) if self.copies else value
        self.seen(value).extend(texts)
        return value

    def joined(self, value: Any, other: Any) -> Any:
        """Change both; return one of what they held."""
        mine, others = self.seen(value), self.seen(other)
        result = self.make([*mine, "+", *others])
        if self.copies:
            return result
        mine.append("mine")
        others.append("theirs")
        return result


KINDS = {
    "dict": Kind(JSON, lambda texts: {"seen": texts}, lambda value: value["seen"]),
    "list": Kind(JSON, lambda texts: texts, lambda value: value),
    "dataclass": Kind(JSON(Row), Row, lambda value: value.seen),
    "struct": Kind(JSON(Struct), Struct, lambda value: value.seen),
}


class Changing(Processor[str, Any]):
    """Changes what the store gave, and what it has put."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")

    def process(self, record: Record[str, Any]) -> None:
        known = self.store.get(record.key)
        if known is None:
            known = self.kind.make([])
        self.kind.add(known, *self.kind.seen(record.value))
        self.store.put(record.key, known)
        self.kind.add(known, "changed after put")
        self.kind.add(self.store.get(record.key), "changed after get")
        for _, value in self.store.all():
            self.kind.add(value, "changed in a range")
        self.context.forward(record.with_value(self.store.get(record.key)))


class Reading(Processor[str, Any]):
    """Changes what windowed, session or versioned stores have, wherever it comes from.

    Args:
        kind: Of the values.
        put: `(store, key, time, value)`.
        reads: Each returns values for `(store, key, time)`.
    """

    def __init__(
        self, kind: Kind, put: Callable[[Any, str, int, Any], object], reads: list[Callable[[Any, str, int], Any]]
    ) -> None:
        self.kind, self.put, self.reads = kind, put, reads

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")

    def process(self, record: Record[str, Any]) -> None:
        kind, key, time = self.kind, record.key, record.timestamp // 3000 * 3000
        known = next(iter(self.reads[0](self.store, key, time)), None)
        row = kind.make([*([] if known is None else kind.seen(known)), *kind.seen(record.value)])
        self.put(self.store, key, time, row)
        kind.add(row, "changed after put")
        found: list[str] = []
        for read in self.reads:
            for value in list(read(self.store, key, time)):
                found += [*kind.seen(value), "|"]
                kind.add(value, "changed after read")
        self.context.forward(record.with_value(kind.make(found)))


@dataclass(frozen=True)
class Case:
    """The parts of an operator."""

    builder: StreamsBuilder
    kind: Kind
    caching: bool

    @property
    def stream(self) -> KStream[str, Any]:
        kind = self.kind
        return self.builder.stream("in", Consumed(STRING, STRING)).map_values(lambda text: kind.make([text]))

    @property
    def grouped(self) -> Any:
        return self.stream.group_by_key(Grouped(STRING, self.kind.serde))

    @property
    def table(self) -> Any:
        return self.stream.to_table(self.kept("table"))

    def kept(self, name: str = "kept") -> Materialized[str, Any]:
        return Materialized(STRING, self.kind.serde, name=name, caching=self.caching)

    def versions(self, name: str = "kept") -> Materialized[str, Any]:
        return Materialized(STRING, self.kind.serde, name=name, history_retention=HOUR)

    @property
    def serdes(self) -> Grouped[str, Any]:
        return Grouped(STRING, self.kind.serde)

    def append(self, _key: Any, value: Any, aggregate: Any) -> Any:
        return self.kind.add(aggregate, *self.kind.seen(value))

    def reduce(self, aggregate: Any, value: Any) -> Any:
        return self.kind.add(aggregate, *self.kind.seen(value))

    def merge(self, _key: Any, one: Any, other: Any) -> Any:
        return self.kind.add(one, *self.kind.seen(other), "merged")

    def empty(self) -> Any:
        return self.kind.make([])


def aggregate(case: Case) -> Any:
    return case.grouped.aggregate(case.empty, case.append, case.kept()).to_stream()


def reduce(case: Case) -> Any:
    return case.grouped.reduce(case.reduce, case.kept()).to_stream()


def hopping(case: Case) -> Any:
    windows = TimeWindows.of_size_and_grace(10 * SECOND, 10 * SECOND).advance_by(5 * SECOND)
    return case.grouped.windowed_by(windows).reduce(case.reduce, case.kept()).to_stream()


def tumbling(case: Case) -> Any:
    windows = TimeWindows.of_size_and_grace(3 * SECOND, 10 * SECOND)
    return case.grouped.windowed_by(windows).aggregate(case.empty, case.append, case.kept()).to_stream()


def sliding(case: Case) -> Any:
    windows = SlidingWindows.of_time_difference_and_grace(3 * SECOND, 10 * SECOND)
    return case.grouped.windowed_by(windows).aggregate(case.empty, case.append, case.kept()).to_stream()


def sessions(case: Case) -> Any:
    windows = SessionWindows.of_inactivity_gap_and_grace(2 * SECOND, 10 * SECOND)
    grouped = case.grouped.windowed_by(windows)
    return grouped.aggregate(case.empty, case.append, case.merge, materialized=case.kept()).to_stream()


def cogrouped(case: Case) -> Any:
    return case.grouped.cogroup(case.append).aggregate(case.empty, case.kept()).to_stream()


def joined_with_a_table(case: Case) -> Any:
    table = case.grouped.reduce(case.reduce, case.kept())
    return case.stream.join(table, case.kind.joined)


def left_joined_with_a_table(case: Case) -> Any:
    table = case.grouped.reduce(case.reduce, case.kept())
    return case.stream.left_join(table, lambda one, other: one if other is None else case.kind.joined(one, other))


def tables_joined(case: Case) -> Any:
    other = case.grouped.reduce(case.reduce, case.kept())
    return case.table.join(other, case.kind.joined, materialized=case.kept("joined")).to_stream()


def mapped(case: Case) -> Any:
    kind = case.kind
    return case.table.map_values(lambda row: kind.add(row, "mapped"), materialized=case.kept()).to_stream()


def filtered(case: Case) -> Any:
    kind = case.kind
    keep: Any = lambda _key, row: bool(kind.add(row, "looked at"))  # noqa: E731 - a predicate
    return case.table.filter(keep, materialized=case.kept()).to_stream()


def changed_below(case: Case) -> Any:
    kind = case.kind
    table = case.grouped.aggregate(case.empty, case.append, case.kept())
    return table.to_stream().map_values(lambda row: kind.add(row, "seen"))


def suppressed(case: Case) -> Any:
    kind = case.kind
    table = case.grouped.aggregate(case.empty, case.append, case.kept())
    held = table.suppress(Suppressed.until_time_limit(SECOND, BufferConfig.max_records(10)))
    return held.to_stream().map_values(lambda row: kind.add(row, "seen"))


def grouped_again(case: Case) -> Any:
    """Adds and takes out, in a list, so what was taken out must be what was added."""
    kind = case.kind

    def add(_key: Any, row: Any, total: Any) -> Any:
        result = kind.add(total, "+".join(kind.seen(row)))
        kind.add(row, "added")
        return result

    def subtract(_key: Any, row: Any, total: Any) -> Any:
        kind.seen(total).remove("+".join(kind.seen(row)))
        kind.add(row, "taken out")
        return total

    table = case.grouped.aggregate(case.empty, case.append, case.kept("rows"))
    regrouped = table.group_by(lambda key, row: (key, row), Grouped(STRING, kind.serde))
    return regrouped.aggregate(case.empty, add, subtract, case.kept()).to_stream()


def streams_joined(case: Case) -> Any:
    windows = JoinWindows.of_time_difference_and_grace(2 * SECOND, SECOND)
    serdes = StreamJoined(STRING, case.kind.serde, case.kind.serde)
    return case.stream.join(case.stream, case.kind.joined, windows=windows, joined=serdes)


def processed(case: Case) -> Any:
    store = Stores.key_value_store("kept", STRING, case.kind.serde, caching=case.caching)
    case.builder.add_state_store(store)
    return case.stream.process(lambda: Changing(case.kind), "kept")


def read_by(case: Case, store: Any, put: Any, *reads: Any) -> Any:
    case.builder.add_state_store(store)
    return case.stream.process(lambda: Reading(case.kind, put, list(reads)), "kept")


def values_of(items: Any) -> Any:
    return (item[-1] for item in items)


def some(found: Any) -> list[Any]:
    return [] if found is None else [found]


def windows_processed(case: Case) -> Any:
    kept = Stores.window_store(
        "kept", STRING, case.kind.serde, retention=HOUR, window_size=SECOND, caching=case.caching
    )
    return read_by(
        case,
        kept,
        lambda store, key, time, value: store.put(key, value, time),
        lambda store, key, time: some(store.fetch(key, time)),
        lambda store, key, time: values_of(store.fetch_range(key, 0, time)),
        lambda store, key, time: values_of(store.backward_fetch_range(key, 0, time)),
        lambda store, key, time: values_of(store.fetch_keys(key, key, 0, time)),
        lambda store, _key, time: values_of(store.fetch_all(0, time)),
        lambda store, _key, _time: values_of(store.all()),
    )


def sessions_processed(case: Case) -> Any:
    kept = Stores.session_store("kept", STRING, case.kind.serde, retention=HOUR, caching=case.caching)
    return read_by(
        case,
        kept,
        lambda store, key, time, value: store.put(Windowed(key, Window(time, time)), value),
        lambda store, key, time: some(store.fetch_session(key, time, time)),
        lambda store, key, time: values_of(store.find_sessions(key, 0, time)),
        lambda store, key, time: values_of(store.backward_find_sessions(key, 0, time)),
        lambda store, key, _time: values_of(store.fetch(key)),
        lambda store, key, _time: values_of(store.fetch_keys(key, key)),
        lambda store, _key, _time: values_of(store.all()),
    )


def versions_processed(case: Case) -> Any:
    kept = Stores.versioned_key_value_store("kept", STRING, case.kind.serde, history_retention=HOUR)
    return read_by(
        case,
        kept,
        lambda store, key, time, value: store.put(key, value, time),
        lambda store, key, time: (one.value for one in some(store.get(key, time))),
        lambda store, key, _time: (one.value for one in some(store.get(key))),
        lambda store, key, _time: (one.value for one in some(store.get(key, 3000))),
    )


def joined_with_versions(case: Case) -> Any:
    table = case.grouped.reduce(case.reduce, case.versions())
    return case.stream.join(table, case.kind.joined)


def joined_with_versions_later(case: Case) -> Any:
    table = case.grouped.reduce(case.reduce, case.versions())
    joined: Joined[str, Any, Any] = Joined(STRING, case.kind.serde, grace_period=SECOND)
    return case.stream.join(table, case.kind.joined, joined=joined)


def versions_joined(case: Case) -> Any:
    table = case.stream.to_table(case.versions())
    other = case.grouped.reduce(case.reduce, case.versions("other"))
    return table.join(other, case.kind.joined, materialized=case.kept("joined")).to_stream()


def regrouped(case: Case, table: Any) -> Any:
    """Adds and takes out the rows of a windowed table; what is taken out must be what was added."""
    kind = case.kind

    def add(_key: Any, row: Any, total: Any) -> Any:
        kind.seen(total).append("+".join(kind.seen(row)))
        kind.add(row, "added")
        return total

    def subtract(_key: Any, row: Any, total: Any) -> Any:
        kind.seen(total).remove("+".join(kind.seen(row)))
        kind.add(row, "taken out")
        return total

    grouped = table.group_by(lambda windowed, row: (windowed.key, kind.add(row, "grouped")), case.serdes)
    return grouped.aggregate(case.empty, add, subtract, case.kept("totals")).to_stream()


def sliding_windows_grouped_again(case: Case) -> Any:
    windows = SlidingWindows.of_time_difference_and_grace(3 * SECOND, 10 * SECOND)
    return regrouped(case, case.grouped.windowed_by(windows).aggregate(case.empty, case.append, case.kept()))


def sessions_grouped_again(case: Case) -> Any:
    windows = SessionWindows.of_inactivity_gap_and_grace(2 * SECOND, 10 * SECOND)
    grouped = case.grouped.windowed_by(windows)
    return regrouped(case, grouped.aggregate(case.empty, case.append, case.merge, materialized=case.kept()))


def versions_grouped_again(case: Case) -> Any:
    kind = case.kind
    table = case.stream.to_table(case.versions("rows"))
    grouped = table.group_by(lambda key, row: (key, kind.add(row, "grouped")), case.serdes)
    return grouped.reduce(case.reduce, kind.joined, case.kept()).to_stream()


def joined_with_a_global_table(case: Case) -> Any:
    table = case.builder.global_table("all", Consumed(STRING, case.kind.serde), case.kept("everywhere"))
    return case.stream.join(table, case.kind.joined, key_selector=lambda key, _row: key)


class Filling(Processor[str, Any]):
    """Keeps all values of a key, and changes them."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("everywhere")

    def process(self, record: Record[str, Any]) -> None:
        kind, known = self.kind, self.store.get(record.key)
        row = kind.make([*([] if known is None else kind.seen(known)), *kind.seen(record.value)])
        self.store.put(record.key, row)
        for value in (row, known, record.value, self.store.get(record.key)):
            if value is not None:
                kind.add(value, "changed")


def read_from_a_global_store(case: Case) -> Any:
    store = Stores.key_value_store("everywhere", STRING, case.kind.serde, logging=False)
    case.builder.add_global_store(store, "all", Consumed(STRING, case.kind.serde), lambda: Filling(case.kind))

    class Looking(Processor[str, Any]):
        def init(self, context: ProcessorContext) -> None:
            self.context, self.store = context, context.get_state_store("everywhere")

        def process(self, record: Record[str, Any]) -> None:
            row = self.store.get(record.key)
            self.context.forward(record.with_value(case.kind.make([*case.kind.seen(row)])))
            case.kind.add(row, "looked at")

    return case.stream.process(Looking)


def joined_by_a_foreign_key(case: Case, join: str = "join") -> Any:
    kind = case.kind
    foreign = case.grouped.reduce(case.reduce, case.kept("foreign"))

    def extract(row: Any) -> str:
        key = "a" if kind.seen(row)[0] in "vxt" else "b"
        kind.add(row, "extracted")
        return key

    joining = getattr(case.table, join)
    joiner: Any = lambda one, other: one if other is None else kind.joined(one, other)  # noqa: E731 - a joiner
    return joining(foreign, joiner, case.kept("joined"), foreign_key_extractor=extract).to_stream()


def left_joined_by_a_foreign_key(case: Case) -> Any:
    return joined_by_a_foreign_key(case, "left_join")


BY_RECORD = [
    joined_with_a_table,
    left_joined_with_a_table,
    streams_joined,
    processed,
    windows_processed,
    sessions_processed,
    versions_processed,
    joined_with_versions,
    joined_with_versions_later,
]
"""Each record has a result."""
LAST_COUNTS = [
    aggregate,
    reduce,
    hopping,
    tumbling,
    sliding,
    sessions,
    cogrouped,
    mapped,
    filtered,
    changed_below,
    tables_joined,
    versions_joined,
]
"""A cache may leave out results of a key but the last one."""
IN_SEVERAL_TASKS = [
    grouped_again,
    suppressed,
    sliding_windows_grouped_again,
    sessions_grouped_again,
    versions_grouped_again,
    joined_with_a_global_table,
    read_from_a_global_store,
    joined_by_a_foreign_key,
    left_joined_by_a_foreign_key,
]
IN_PLACE_ALONE = [processed, streams_joined, filtered]
"""Cases in which what is changed in place is forwarded, or given to the next call for the record: as in Kafka Streams."""
RUNS = [(False, 3, False), (True, 3, False), (True, 3, True), (True, 10, False)]
"""Whether there is a cache, how many records there are to a commit, and whether the task is reopened after each."""


@dataclass
class Sent:
    """Keeps what a task sends."""

    records: list[tuple[Any, ...]] = field(default_factory=list)

    def send(self, *record: Any) -> None:
        self.records.append(record)

    def partitions(self, _topic: str) -> int:
        return 1


def written(build: Callable[[Case], Any], kind: Kind, *, caching: bool) -> StreamsBuilder:
    builder = StreamsBuilder()
    results = build(Case(builder, kind, caching))
    texts = results.map(lambda key, value: (str(key), repr(value)))
    texts.to("out", Produced(STRING, STRING))
    return builder


def outcome(
    build: Callable[[Case], Any], kind: Kind, *, caching: bool, commits: int, restarts: bool
) -> list[tuple[str, str]]:
    """Keys and results, committed every so many records, perhaps with a task that is then reopened."""
    (sub,) = written(build, kind, caching=caching).build().sub_topologies()
    tp, sent, backend = TopicPartition("in", 0), Sent(), MemoryBackend()
    task = None
    for at in range(0, len(RECORDS), commits):
        if task is None or restarts:
            task = Task(TaskSpec(TaskId(0, 0), sub, "app", (tp,), ErrorHandlers()), Ports(sent, backend, MockClock()))
            task.start({})
        records = enumerate(RECORDS[at : at + commits], at)
        task.add_records(tp, [RawRecord(key.encode(), text.encode(), n * 1000, n) for n, (key, text) in records])
        task.process_all()
        task.prepare_commit()
        task.post_commit({})
    return [(record[1].decode(), record[2].decode()) for record in sent.records if record[0] == "out"]


def last(results: list[tuple[str, str]]) -> dict[str, str]:
    """The last result of each key, but of those that are gone: some came and went within a commit."""
    return {key: value for key, value in dict(results).items() if value != "None"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [*BY_RECORD, *LAST_COUNTS])
def test_functions_that_change_values_change_no_store(build: Callable[[Case], Any], kind: str) -> None:
    plain = outcome(build, KINDS[kind], caching=False, commits=1, restarts=True)
    assert len(plain) >= 4
    for caching, commits, restarts in RUNS:
        found = outcome(build, KINDS[kind], caching=caching, commits=commits, restarts=restarts)
        if build in BY_RECORD or not caching:
            assert found == plain, (caching, commits, restarts)
        else:
            assert last(found) == last(plain), (caching, commits, restarts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [*BY_RECORD, *LAST_COUNTS])
def test_functions_that_change_values_have_the_results_of_those_that_copy(
    build: Callable[[Case], Any], kind: str
) -> None:
    if build not in IN_PLACE_ALONE:
        found, expected = (
            outcome(build, replace(KINDS[kind], copies=copies), caching=False, commits=3, restarts=False)
            for copies in (False, True)
        )
        assert found == expected != []


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", IN_SEVERAL_TASKS)
def test_functions_that_change_values_change_nothing_between_tasks(
    build: Callable[[Case], Any], kind: str, *, caching: bool
) -> None:
    found = []
    for copies in (False, True):
        own = replace(KINDS[kind], copies=copies)
        with TopologyTestDriver(written(build, own, caching=caching).build()) as driver:
            for number, (key, text) in enumerate(RECORDS):
                if "everywhere" in driver.get_all_state_stores():
                    driver.input_topic("all", STRING, own.serde).pipe_input(key, own.make([text]), timestamp=number)
                driver.input_topic("in", STRING, STRING).pipe_input(key, text, timestamp=number * 1000)
            found.append(driver.output_topic("out", STRING, STRING).read_key_values_to_list())
    assert found[0] == found[1] != []


def test_a_joiner_that_appends_to_a_row_is_given_the_row_as_it_was_put() -> None:
    """As Kafka Streams does, with and without caches."""
    for size in (0, 10_000_000):
        builder = StreamsBuilder()
        users = builder.table("users", Consumed(STRING, JSON))

        def visited(page: str, user: dict[str, Any]) -> dict[str, Any]:
            user["pages"] = [*user.get("pages", []), page]
            return user

        builder.stream("pages", Consumed(STRING, JSON)).join(users, visited).to("out", Produced(STRING, JSON))
        with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": size}) as driver:
            driver.input_topic("users", STRING, JSON).pipe_input("ann", {"city": "Rome"}, timestamp=0)
            for page in ("/", "/cart", "/pay"):
                driver.input_topic("pages", STRING, JSON).pipe_input("ann", page, timestamp=0)
            rows = driver.output_topic("out", STRING, JSON).read_values_to_list()
        assert [row and row["pages"] for row in rows] == [["/"], ["/cart"], ["/pay"]]
