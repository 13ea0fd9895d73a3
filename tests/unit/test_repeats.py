"""A replay of dead letters names what may see records twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    FixedKeyProcessor,
    FixedKeyRecord,
    Grouped,
    Joined,
    Materialized,
    Processor,
    Produced,
    Record,
    Repartitioned,
    Stores,
    StreamsBuilder,
    TopicPartition,
)
from riverrun.errors import RangeError
from riverrun.hosting.progress import reporting_progress
from riverrun.kafka import ranges
from riverrun.topics import repeats
from riverrun.topics.letters import DeadLetter, DeadLetters, ReplayPlan
from riverrun.topics.repeats import Repeats, newest_rows, repeated, set_back, tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun import KStream, Topology
    from riverrun.hosting.progress import Progress
    from riverrun.records import OffsetRange, RawFields

STRINGS = Consumed(STRING, STRING)
TO_STRINGS = Produced(STRING, STRING)
ROWS_OF = Materialized(STRING, STRING, name="rows")
GROUPED = Grouped(STRING, STRING)


def chain(stream: KStream[str, str]) -> None:
    stream.map_values(str.upper).map_values(str.lower).to("out", TO_STRINGS)


def two_ways(stream: KStream[str, str]) -> None:
    stream.to("early", TO_STRINGS)
    stream.map_values(str.upper).to("out", TO_STRINGS)


def counted(stream: KStream[str, str]) -> None:
    stream.group_by_key(GROUPED).count(Materialized(name="counts")).to_stream().map_values(str).to("out", TO_STRINGS)


def several(stream: KStream[str, str]) -> None:
    stream.flat_map_values(str.split).map_values(str.upper).to("out", TO_STRINGS)


def moved(stream: KStream[str, str]) -> None:
    through = stream.map_values(str.upper).repartition(Repartitioned(STRING, STRING, name="moved"))
    through.group_by_key(GROUPED).count(Materialized(name="counts")).to_stream().map_values(str).to("out", TO_STRINGS)


def stores() -> list[Any]:
    return [Stores.key_value_store("seen", STRING, STRING)]


class Seen(Processor[str, str, str, str]):
    stores = staticmethod(stores)

    def process(self, record: Record[str, str]) -> None: ...


class SeenValues(FixedKeyProcessor[str, str, str]):
    stores = staticmethod(stores)

    def process(self, record: FixedKeyRecord[str, str]) -> None: ...


def processed(stream: KStream[str, str]) -> None:
    stream.map_values(str.upper).process(Seen)


def processed_values(stream: KStream[str, str]) -> None:
    stream.process_values(SeenValues)


def counted_last(stream: KStream[str, str]) -> None:
    stream.map_values(str.upper).group_by_key(GROUPED).count(Materialized(name="counts"))


def chosen(stream: KStream[str, str]) -> None:
    stream.to(lambda _k, v, _t: v, TO_STRINGS)
    stream.map_values(str.upper).to("out", TO_STRINGS)


@pytest.mark.parametrize(
    ("add", "origin", "names"),
    [
        (chain, "in", ""),
        (two_ways, "in", "topics early, out"),
        (counted, "in", "store counts, topic out"),
        (several, "in", "topic out"),
        (moved, "in", ""),
        (moved, "app-v1-moved-repartition", "store counts, topic out"),
        (processed, "in", "store seen"),
        (processed_values, "in", "store seen"),
        (counted_last, "in", ""),
        (chosen, "in", "topics out, topics that a function chooses"),
        (chain, "elsewhere", ""),
    ],
)
def test_what_comes_before_a_node_that_may_fail_may_get_a_record_twice(add: Any, origin: str, names: str) -> None:
    builder = StreamsBuilder()
    add(builder.stream("in", STRINGS))
    assert str(repeated(builder.build(), "app-v1", [origin])) == names


def joined() -> Topology:
    builder = StreamsBuilder()
    rows = builder.table("rows", STRINGS, Materialized(name="rows"))
    stream = builder.stream("in", STRINGS)
    stream.join(rows, lambda left, right: left + right, joined=Joined(STRING, STRING)).to("out", TO_STRINGS)
    return builder.build()


def test_only_topics_that_are_read_as_tables_have_rows() -> None:
    assert tables(joined(), "app", ["rows", "in"]) == {"rows"}


def to_table(builder: StreamsBuilder) -> None:
    builder.stream("in", STRINGS).map_values(str.upper).to_table(ROWS_OF)


def moved_to_table(builder: StreamsBuilder) -> None:
    builder.stream("in", STRINGS).select_key(lambda _key, value: value).to_table(ROWS_OF)


def changes_of_rows(builder: StreamsBuilder) -> None:
    builder.table_from_changes("in", Consumed.debezium(), Materialized(name="rows"))


def aggregated(builder: StreamsBuilder) -> None:
    counted(builder.stream("in", STRINGS))


def read_as_rows(builder: StreamsBuilder) -> None:
    builder.table("in", STRINGS, Materialized(name="rows"))


@pytest.mark.parametrize(
    ("add", "names"),
    [
        (to_table, ("rows",)),
        (moved_to_table, ("rows",)),
        (changes_of_rows, ("rows",)),
        (aggregated, ()),
        (read_as_rows, ()),
    ],
)
def test_tables_made_of_streams_may_lose_newer_rows(add: Any, names: tuple[str, ...]) -> None:
    builder = StreamsBuilder()
    add(builder)
    assert set_back(builder.build(), "app-v1", ["in"]) == names


def test_newer_rows_of_tables_made_of_streams_are_replaced_only_on_request() -> None:
    builder = StreamsBuilder()
    to_table(builder)
    topology = builder.build()
    log: Any = Log()
    found = DeadLetters(log, "dead", "ann", reader=lambda: ("app-v1", topology))
    planned = found.plan([letter(0, b"a", "in", left_no_trace=True)])
    assert not planned.repeats
    with pytest.raises(RangeError, match="may replace newer rows of tables: rows") as raised:
        found.carry_out(planned)
    assert "--again" in (raised.value.hint or "")


ROWS = TopicPartition("rows", 0)


class Log:
    """Brokers with one partition of a table."""

    keys = (b"a", b"b", b"a", b"c", b"b")

    def beginning_offsets(self, tps: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 1)

    def end_offsets(self, tps: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, len(self.keys))

    def partitions(self, topics: Any) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def groups_of(self, tps: Any) -> list[str]:
        return ["app-v1", "reports"] if tps else []

    def fields(
        self, _admin: Any, wanted: Mapping[TopicPartition, OffsetRange]
    ) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
        for tp, part in wanted.items():
            yield tp, [(self.keys[at], b"", 0, at, ()) for at in range(part.start, part.end)]


def letter(offset: int, key: bytes, topic: str = "rows", *, left_no_trace: bool = False) -> DeadLetter:
    place = TopicPartition("dead", 0), offset, TopicPartition(topic, 0), offset
    return DeadLetter(*place, 0, key, b"", (), "ValueError", "", "", left_no_trace=left_no_trace)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> DeadLetters:
    log: Any = Log()
    monkeypatch.setattr(repeats, "read_fields", log.fields)
    assert ranges.read_fields is not None
    monkeypatch.setattr(DeadLetters, "list", lambda *_: iter(()))
    return DeadLetters(log, "dead", "ann", reader=lambda: ("app-v1", joined()))


def test_rows_that_a_later_record_has_replaced_are_found(letters: DeadLetters) -> None:
    found = newest_rows(letters._admin, [(ROWS, b"a", 0), (ROWS, b"b", 4), (ROWS, b"d", 2)])
    assert found == {(ROWS, b"a"): 2, (ROWS, b"b"): 4}
    planned = letters.plan([letter(0, b"a"), letter(2, b"a"), letter(1, b"b"), letter(4, b"b"), letter(0, b"a", "in")])
    assert [each.offset for each in planned.outdated] == [0, 1]
    assert [each.offset for each in planned.letters] == [2, 4, 0]


def test_records_that_have_become_no_rows_do_not_make_earlier_ones_old(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, lost = letter(0, b"a", left_no_trace=True), letter(2, b"a", left_no_trace=True)
    monkeypatch.setattr(DeadLetters, "list", lambda *_: iter([old, lost]))
    assert letters.plan([old]).letters == (old,)
    # Both become rows: the newer one counts.
    assert letters.plan([old, lost]).outdated == (old,)
    # A handler that continued may have left the row in the table.
    monkeypatch.setattr(DeadLetters, "list", lambda *_: iter([old, letter(2, b"a")]))
    assert letters.plan([old]).outdated == (old,)


def test_the_search_for_newer_rows_reports_its_progress(letters: DeadLetters) -> None:
    seen: list[Progress] = []
    with reporting_progress(seen.append):
        letters.plan([letter(1, b"b")])
    assert seen == [("look for newer rows", 0, 3), ("look for newer rows", 3, 3)]


def test_only_letters_whose_record_has_left_a_trace_repeat_something(letters: DeadLetters) -> None:
    partial = letters.plan([letter(0, b"k", "in"), letter(1, b"k", "in", left_no_trace=True)])
    assert (partial.repeats, partial.groups) == (Repeats(topics=("out",)), ("reports",))
    with pytest.raises(RangeError, match="topic out may get records twice, and so do group reports") as raised:
        letters.carry_out(partial)
    assert "--again" in (raised.value.hint or "")
    whole = letters.plan([letter(1, b"k", "in", left_no_trace=True)])
    assert not whole.repeats
    assert isinstance(whole, ReplayPlan)
