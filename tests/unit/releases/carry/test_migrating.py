"""Values of a store are migrated row by row; what a function cannot migrate is decided about like any failure."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, LONG, STRING, Consumed, Grouped, Materialized, StreamsBuilder, TimeWindows
from riverrun.errors import ReleaseError
from riverrun.processor.handlers import ErrorHandlerContext, LogAndContinue, LogAndFail, ProducerRecord, Response
from riverrun.records import TopicPartition
from riverrun.releases.migrating import Migration
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology
    from riverrun.processor.handlers import ProcessingExceptionHandler

TP = TopicPartition("shop-v1-counts-changelog", 3)


def counts(*, windows: bool = False, serde: Any = LONG) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("clicks", Consumed(STRING, LONG)).group_by_key(Grouped(STRING, LONG))
    kept: Any = grouped.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1))) if windows else grouped
    kept.aggregate(lambda: 0, lambda _key, value, total: total + value, Materialized(name="counts", value_serde=serde))
    return builder.build()


def in_words(key: str, value: int) -> dict[str, Any] | None:
    return {"of": key, "n": 10 // value} if value < 9 else None


def migration(handler: ProcessingExceptionHandler | None = None, *, windows: bool = False, **more: Any) -> Migration:
    before, after = (counts(windows=windows, serde=serde).stores["counts"] for serde in (LONG, JSON))
    return Migration(before, after, f"{__name__}:in_words", 2, handler, **more)


def row(value: int, key: bytes = b"ann") -> tuple[bytes | None, bytes | None, int, int, Any]:
    return key, LONG.serialize(value), 70, 5, (("by", b"bob"),)


@pytest.mark.parametrize("windows", [False, True])
def test_a_function_sees_the_keys_and_values_that_a_store_had(windows: bool) -> None:
    topology = counts(windows=windows)
    with TopologyTestDriver(topology, application_id="shop-v1") as driver:
        driver.input_topic("clicks", STRING, LONG).pipe_input("ann", 5, timestamp=61_000)
        (written,) = driver.read_raw("shop-v1-counts-changelog")
    made, letters = migration(windows=windows)(TP, (written.key, written.value, written.timestamp, 0, ()))
    assert json.loads(made or b"") == {"of": "ann", "n": 2}
    assert letters == ()


def test_deleted_rows_stay_deleted_and_none_deletes_a_row() -> None:
    migrate = migration()
    assert migrate(TP, (b"ann", None, 70, 5, ())) == (None, ())
    assert migrate(TP, row(9)) == (None, ())
    assert migrate.left_out == 0


def test_a_row_that_fails_stops_and_names_the_key_and_what_leaves_it_out() -> None:
    for handler in None, LogAndFail("dead"):
        with pytest.raises(ReleaseError, match=r"cannot migrate the value .* of key b'ann' of store counts") as stopped:
            migration(handler)(TP, row(0))
        assert "processing.exception.handler = continue" in (stopped.value.hint or "")


@pytest.mark.parametrize(("staged", "topic"), [(None, "dead"), ("staged-dead", "staged-dead")])
def test_a_row_that_a_handler_leaves_out_is_a_dead_letter(staged: str | None, topic: str) -> None:
    migrate = migration(LogAndContinue("dead"), dead_letters=staged)
    made, (letter,) = migrate(TP, row(0))
    headers = dict(letter.headers)
    assert (made, migrate.left_out) == (None, 1)
    assert (letter.topic, letter.key, letter.value) == (topic, b"ann", LONG.serialize(0))
    assert (headers["by"], headers["__streams.errors.topic"]) == (b"bob", TP.topic.encode())
    assert (headers["__streams.errors.partition"], headers["__streams.errors.offset"]) == (b"3", b"5")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (dict[str, Any]().__getitem__, r"Fatal user code error in processing error callback: KeyError: 'decision'"),
        (str, r"The processing exception handler returned 'decision', not a Response"),
    ],
)
def test_a_handler_that_cannot_decide_stops(answer: Callable[[str], Any], why: str) -> None:
    def handler(_where: ErrorHandlerContext, _record: object, _error: Exception) -> Any:
        return answer("decision")

    with pytest.raises(ReleaseError, match=f"^A row of store counts could not be migrated: {why}"):
        migration(handler)(TP, row(0))


def test_bytes_that_no_serde_reads_are_rows_that_fail() -> None:
    seen: list[tuple[ErrorHandlerContext, ProducerRecord]] = []

    def handler(where: ErrorHandlerContext, record: Any, _error: Exception) -> Response:
        seen.append((where, record))
        return Response.resume()

    assert migration(handler)(TP, (b"ann", b"?", -1, 5, ())) == (None, ())
    ((where, record),) = seen
    assert (str(where.task_id), where.processor_node_id, where.source_raw_value) == ("2_3", "counts", b"?")
    assert record.key == "ann"
