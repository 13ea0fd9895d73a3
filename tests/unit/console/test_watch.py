"""A project is looked at again and again, as long as anybody wants to see it."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.console import watch as watching
from pipeline.console.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Counting:
    """Counts looks; fails at some."""

    looks = 0

    def __init__(self, *failing: int) -> None:
        self._failing = failing

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        if self.looks in self._failing:
            message = "out of order"
            raise RuntimeError(message)
        return {"at": self.looks, "error": None}


def test_nothing_is_looked_at_before_somebody_asks() -> None:
    look = Counting()
    with closing(Watch(look, 0.01)) as watch:
        assert look.looks == 0
        assert watch.latest == {"at": None}
        until(lambda: watch.latest["at"] is not None)
        said = asyncio.run(watch.event()).decode()
    assert said.startswith("event: state\ndata: ")
    assert msgspec.json.decode(said.split("data: ")[1])["at"] >= 1


def test_looks_end_when_nobody_asks_any_more_and_go_on_when_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_UNWATCHED_SECONDS", 0.2)
    look = Counting()
    with closing(Watch(look, 0.01)) as watch:
        until(lambda: watch.latest["at"] is not None)
        until(lambda: not watch._is_wanted.is_set())
        seen = look.looks
        until(lambda: watch.latest["at"] > seen)


def test_a_look_that_fails_is_told_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    look = Counting(2)
    told = set()
    with closing(Watch(look, 0.05)) as watch:

        def goes_on() -> bool:
            told.add(watch.latest.get("error"))
            return look.looks > 3

        until(goes_on)
    assert "RuntimeError: out of order" in told
    assert "the project cannot be looked at" in caplog.text
