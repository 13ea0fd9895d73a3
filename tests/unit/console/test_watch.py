"""A project is looked at again and again, as long as anybody wants to see it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.console import looking as watching
from riverrun.console.looking import ProjectWatch, _rate
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


class Committing:
    """Sees an application whose live version commits 50 offsets in each half a second."""

    def __init__(self) -> None:
        self.looks, self.live, self.error = 0, "v1", None

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        version = {"id": f"clicks-{self.live}", "live": True, "committed": 1000 + 50 * self.looks, "lag": 7}
        apps = [{"name": "clicks", "versions": [version]}, {"name": "new", "versions": []}]
        return {"at": 500 * self.looks, "error": self.error, "apps": apps}


def rate(watch: ProjectWatch) -> float | None:
    found: float | None = watch.latest["apps"][0].get("rate")
    return found


def test_the_rate_of_an_application_is_that_of_its_commits_between_two_polls() -> None:
    look = Committing()
    with closing(ProjectWatch(look, 0.05)) as watch:
        until(lambda: watch.latest["at"] is not None and rate(watch) is not None, "two polls")
        assert rate(watch) == 100
        assert watch.latest["apps"][1]["rate"] is None
        assert set(watch.since(0)["series"]) == {"lag/clicks", "rate/clicks"}


def test_a_version_that_has_just_gone_live_has_no_rate_yet() -> None:
    look = Committing()
    with closing(ProjectWatch(look, 0.05)) as watch:
        until(lambda: watch.latest["at"] is not None and rate(watch) == 100, "two polls")
        assert _rate({"versions": [{"id": "b", "live": True, "committed": 9}]}, watch.latest["apps"][0], 500) is None


def test_offsets_that_were_set_back_are_no_negative_rate() -> None:
    before, now = ({"versions": [{"id": "a", "live": True, "committed": at}]} for at in (9, 5))
    assert _rate(now, before, 500) == 0


def test_a_look_that_fails_is_reported_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    look = Counting(fails=True)
    with closing(ProjectWatch(look, 0.05)) as watch:
        until(lambda: watch.latest.get("error") == "RuntimeError: out of order", "reported the error")
        look.fails = False
        until(lambda: watch.latest["at"] is not None and watch.latest.get("error") is None, "went on")
    assert "cannot inspect the project" in caplog.text
