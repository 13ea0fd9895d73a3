"""A project is looked at again and again, as long as anybody wants to see it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.console import looking as watching
from riverrun.console.looking import ProjectWatch
from tests.waiting import until

if TYPE_CHECKING:
    import pytest


class Counting:
    """Counts looks; fails as long as it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.looks, self.fails = 0, fails

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        if self.fails:
            message = "out of order"
            raise RuntimeError(message)
        return {"at": self.looks, "error": None}


def test_nothing_is_looked_at_before_somebody_asks() -> None:
    look = Counting()
    with closing(ProjectWatch(look, 0.01)) as watch:
        assert look.looks == 0
        assert watch.latest == {"at": None}
        until(lambda: watch.latest["at"] is not None, "looked")
        event = asyncio.run(watch.event()).decode()
    assert event.startswith("event: state\ndata: ")
    assert msgspec.json.decode(event.split("data: ")[1])["at"] >= 1


def test_looks_end_when_nobody_asks_any_more_and_go_on_when_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_UNWATCHED_SECONDS", 0.2)
    look = Counting()
    with closing(ProjectWatch(look, 0.01)) as watch:
        until(lambda: watch.latest["at"] is not None, "looked")
        until(lambda: not watch._is_wanted.is_set(), "rested")
        seen = look.looks
        until(lambda: watch.latest["at"] > seen, "looked again")


def test_a_look_that_fails_is_reported_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    look = Counting(fails=True)
    with closing(ProjectWatch(look, 0.05)) as watch:
        until(lambda: watch.latest.get("error") == "RuntimeError: out of order", "reported the error")
        look.fails = False
        until(lambda: watch.latest["at"] is not None and watch.latest.get("error") is None, "went on")
    assert "cannot inspect the project" in caplog.text
