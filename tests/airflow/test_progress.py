"""How far the work of tasks is, in their logs."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from riverrun.hosting.progress import Progress, polling_progress, report_progress
from riverrun_airflow import progress as reporting
from riverrun_airflow.progress import LoggedProgress, following, spark_has_started


class Log:
    """A log, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_s = 0.0
        self.is_full = False

    def info(self, form: str, *arguments: object) -> None:
        if self.is_full:
            raise OSError
        self.lines.append(form % arguments)

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def log() -> Log:
    return Log()


def test_each_work_is_logged_every_ten_seconds_and_when_it_ends(log: Log) -> None:
    progress = LoggedProgress(log, clock=log.clock)
    for second in range(26):
        log.now_s = second
        progress.show(Progress("compare sums", 100 * second, 5_000))
    progress.show(Progress("judge sums", 0, None))
    log.now_s = 27
    progress.show(Progress("judge sums", 3_000, None))
    progress.close()
    progress.close()
    assert log.lines == [
        "compare sums: 1,000 of 5,000 records (20 %), 100/s, 40 s remaining",
        "compare sums: 2,000 of 5,000 records (40 %), 100/s, 30 s remaining",
        "compare sums: 2,500 of 5,000 records (50 %), 100/s, 25 s remaining",
        "judge sums: 3,000 records, 1,500/s",
    ]


def test_the_last_report_of_a_run_takes_no_records_of_repartition_topics_away(log: Log) -> None:
    progress = LoggedProgress(log, clock=log.clock)
    for done, everything in (0, 60), (15, 75), (70, 105), (60, 60):
        progress.show(Progress("clicks-v1", done, everything))
    progress.close()
    assert log.lines == ["clicks-v1: 105 of 105 records (100 %)"]


@pytest.mark.parametrize("seed", range(20))
def test_percentages_only_rise_and_end_at_a_hundred(log: Log, seed: int) -> None:
    chance, progress = random.Random(seed), LoggedProgress(log, clock=log.clock)
    percents: list[int] = []
    for _ in range(200):
        log.now_s += chance.random()
        everything = chance.choice([0, None, chance.randint(1, 2_000)])
        progress.show(Progress("run", chance.randint(0, 1_000), everything))
        percents += map(int, re.findall(r"\((\d+) %\)", progress.said))
    progress.show(Progress("run", 2_000, 2_000))
    assert percents == sorted(percents)
    assert "2,000 of 2,000 records (100 %)" in progress.said


def test_progress_never_ends_the_work(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_page() -> str:
        raise RuntimeError

    log.is_full = True
    monkeypatch.setattr(reporting, "spark_page", no_page)
    with following(LoggedProgress(log)):
        report_progress("run", 1, 2)
        report_progress("judge", 1, 2)
        spark_has_started()
        progress: Any = ("run", "many", "more")
        with polling_progress("run", lambda: progress):
            pass
    assert log.lines == []


def test_sparks_page_is_shown_once_as_soon_as_it_has_started(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, fails = ["", "http://spark:4040"], [True]
    shown: list[str] = []

    def show(page: str) -> None:
        if fails:
            fails.pop()
            raise OSError
        shown.append(page)

    monkeypatch.setattr(reporting, "spark_page", lambda: pages[0])
    spark_has_started()
    with following(LoggedProgress(log, show)) as progress:
        spark_has_started()
        assert shown == []
        pages.pop(0)
        spark_has_started()
        assert shown == [], "Airflow did not answer"
        for _ in range(2):
            report_progress("run", 1, 2)
        assert (shown, progress.page) == (["http://spark:4040"], "http://spark:4040")
