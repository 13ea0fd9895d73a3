"""The version that answers: the live one, or the one that a query names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import BrokerError
from riverrun.service import reading as module
from riverrun.service.reading import LiveReferral, RefusalError

if TYPE_CHECKING:
    from collections.abc import Sequence


def instance(version: str, live: str | None) -> Any:
    application = SimpleNamespace(version=version, config=SimpleNamespace(name="clicks"), kafka={})
    return SimpleNamespace(application=application, live_version=live)


def refused(live: LiveReferral, version: str | None = None) -> tuple[str, str | None]:
    with pytest.raises(RefusalError) as error:
        live.require(version)
    return error.value.refusal.message, error.value.refusal.server


@pytest.mark.parametrize(("live", "named"), [("v1", None), (None, None), ("v2", "v1"), (None, "v1")])
def test_an_instance_answers_if_its_version_is_live_or_named(live: str | None, named: str | None) -> None:
    LiveReferral(instance("v1", live), find=lambda _group: []).require(named)


def test_an_instance_that_is_not_live_names_one_that_is() -> None:
    groups: list[str] = []

    def find(group: str) -> Sequence[str]:
        groups.append(group)
        return ["there:1"]

    live = LiveReferral(instance("v1", "v2"), find)
    assert refused(live) == ("v2 of clicks is live, but this is an instance of v1", "there:1")
    assert refused(live, "v3") == ("v3 of clicks was requested, but this is an instance of v1", "there:1")
    assert groups == ["clicks-v2", "clicks-v3"]


def test_brokers_are_not_asked_again_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], list[str]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def find(group: str) -> list[str]:
        asked.append(group)
        return ["there:1"]

    live = LiveReferral(instance("v1", "v2"), find)
    for now[0] in (10.0, 11.0, 14.0, 16.0):
        refused(live)
    assert len(asked) == 2, "once, and once more after five seconds"


def test_the_live_version_is_returned_if_no_instance_of_it_is_known() -> None:
    def fail(_group: str) -> Sequence[str]:
        message = "away"
        raise BrokerError(message)

    def nobody(_group: str) -> Sequence[str]:
        return []

    for find in (fail, nobody):
        assert refused(LiveReferral(instance("v1", "v2"), find)) == (
            "v2 of clicks is live, but this is an instance of v1",
            None,
        )


def test_what_is_live_may_change_between_two_questions() -> None:
    host = instance("v1", "v1")
    live = LiveReferral(host, find=lambda _group: [])
    live.require(None)
    host.live_version = "v2"
    refused(live)
    host.live_version = "v1"
    live.require(None)
