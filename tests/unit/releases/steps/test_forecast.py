"""The cost of a reprocessing, estimated from runs and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.records import OffsetRange, TopicPartition
from riverrun.releases.release_plan import Forecast, Race, RunRate, measured_rate, races
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DONE, FAILED, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

ORDERS = TopicPartition("orders", 0)
HOUR_MS = 3_600_000


def a_run(name: str, records: int, seconds: float, state: str = DONE) -> RunRecord:
    return RunRecord(
        name, "clicks", "v1", "ann", 1_000, "", state, ended_ms=1_000 + int(seconds * 1_000), records_in=records
    )


@pytest.mark.parametrize(
    ("runs", "rate"),
    [
        ([], None),
        ([a_run("empty", 0, 5)], None),
        ([a_run("broken", 5_000, 5, FAILED)], None),
        ([a_run("at once", 5_000, 0)], None),
        ([a_run("small", 10, 5), a_run("large", 5_000, 20), a_run("later", 40, 5)], RunRate(5_000, 20.0, "large")),
    ],
)
def test_the_rate_is_that_of_the_run_that_has_read_most(runs: list[RunRecord], rate: RunRate | None) -> None:
    assert measured_rate(runs) == rate


@pytest.mark.parametrize(
    ("records", "offsets", "seconds"),
    [(6, 6, 12.0), (6, 1, 12.0), (6, 9_999, 12.0), (6, 10_000, None), (9_999, 10**6, None), (12_000, 24_000, 24.0)],
)
def test_a_run_of_few_records_tells_nothing_about_many(records: int, offsets: int, seconds: float | None) -> None:
    assert RunRate(records, 12.0, "run").seconds_for(offsets) == seconds


def lost(seconds: float, kept_ms: int, *, records: int = 1_000, now_ms: int = 10 * HOUR_MS) -> tuple[Race, ...]:
    """The races of a topic with a record per second, the last one of now."""

    def first_after(tps: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        oldest_ms = now_ms - records * 1_000
        return {tp: min(records, max(0, (time_ms - oldest_ms) // 1_000)) for tp in tps}

    wanted = RunRange({ORDERS: OffsetRange(0, records)})
    return races(wanted, seconds, {"orders": kept_ms}, now_ms, first_after)


def test_nothing_is_lost_where_records_are_read_faster_than_they_expire() -> None:
    assert lost(seconds=500, kept_ms=2_000_000) == (), "they are kept for longer than the whole takes"
    assert lost(seconds=500, kept_ms=1_000_000) == (), "the oldest expire at half the pace at which they are read"


def test_records_that_expire_before_they_are_read_are_named() -> None:
    (race,) = lost(seconds=4_000, kept_ms=1_000_000)
    assert race == Race(ORDERS, 1_000, 1_000, 250), "all have expired when a quarter is read: most are lost then"
    (race,) = lost(seconds=100, kept_ms=500_000)
    assert (race.within_s, race.deleted_below - race.read_below) == (6.25, 444), "half had expired at the beginning"


def test_a_topic_that_keeps_its_records_is_in_no_race() -> None:
    wanted = RunRange({ORDERS: OffsetRange(0, 1_000)})
    assert races(wanted, 10_000, {}, HOUR_MS, lambda _tps, _time_ms: pytest.fail("nothing is asked")) == ()


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (Forecast(), ["how long it takes is not known: no bounded run of the application has been measured"]),
        (Forecast(None, RunRate(6, 12.0, "0001"), 12.0), ["about 12 s, as in run 0001"]),
        (
            Forecast(None, RunRate(6, 12.0, "0001"), None),
            ["how long it takes is not known: the largest bounded run, 0001, had few records"],
        ),
        (
            Forecast(12_345_678, RunRate(523_004, 10.0, "0012"), 5_400, (Race(ORDERS, 1_800, 8_100, 6_000),)),
            [
                "12 MB on the brokers' disks; about 90 min at 52,300 records/s, as in run 0012",
                (
                    "orders-0 may lose offsets below 8100 to retention within 30 min, "
                    "and those below 6000 are read by then: raise retention.ms first"
                ),
            ],
        ),
    ],
)
def test_a_forecast_says_what_is_known(found: Forecast, lines: list[str]) -> None:
    assert list(found.lines) == lines
