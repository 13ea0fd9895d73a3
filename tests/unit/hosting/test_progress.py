"""Progress reaches the listener that began the work, and nobody waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import BrokerError
from riverrun.hosting.progress import (
    Progress,
    counted_batches,
    counted_rows,
    is_followed,
    polling_progress,
    report_progress,
    reporting_progress,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 30.0


def test_work_tells_the_listener_that_began_it() -> None:
    heard: list[Progress] = []
    with reporting_progress(heard.append):
        assert is_followed()
        report_progress("import", 1, 3)
        assert list(counted_batches("compare", [("a", [1, 2]), ("b", [3])], 3)) == [("a", [1, 2]), ("b", [3])]
        assert list(counted_rows("judge", range(1_001))) == list(range(1_001))
    report_progress("later", 1)
    assert heard == [
        ("import", 1, 3),
        *(("compare", done, 3) for done in (0, 2, 3)),
        *(("judge", done, None) for done in (1_000, 1_001)),
    ]
    assert not is_followed()


def test_threads_have_listeners_of_their_own() -> None:
    heard: list[Progress] = []
    with reporting_progress(heard.append):
        other = threading.Thread(target=lambda: report_progress("other", 1))
        other.start()
        other.join()
    assert heard == []


def test_work_is_looked_at_while_brokers_are_away_now_and_then() -> None:
    heard, is_reported = [], threading.Event()
    looks: Iterator[BrokerError | tuple[int, int]] = iter([BrokerError("away"), (3, 7)])

    def look() -> tuple[int, int | None]:
        found = next(looks, (7, 7))
        if isinstance(found, BrokerError):
            raise found
        return found

    def hear(progress: Progress) -> None:
        heard.append(progress)
        is_reported.set()

    with reporting_progress(hear, every_s=0.01), polling_progress("run", look):
        assert is_reported.wait(_SECONDS)
    assert heard[0] == ("run", 3, 7)


def test_an_interrupted_run_does_not_wait_for_a_look_that_takes_long() -> None:
    looking, may_answer, answered = threading.Event(), threading.Event(), threading.Event()

    def look() -> tuple[int, int]:
        looking.set()
        may_answer.wait(_SECONDS)
        answered.set()
        return 0, 1

    def run() -> None:
        with reporting_progress(lambda _progress: None, every_s=0.01), polling_progress("run", look):
            assert looking.wait(_SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not answered.is_set()
    may_answer.set()
    assert answered.wait(_SECONDS)
