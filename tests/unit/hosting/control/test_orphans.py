"""Switches on which no process works any more."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.hosting import barrier_listener
from riverrun.hosting.barrier_listener import OrphanWatch
from riverrun.hosting.release import Release, ReleaseStep

if TYPE_CHECKING:
    import pytest


def test_a_switch_without_a_sign_of_work_is_an_orphan_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(barrier_listener, "ORPHANED_SECONDS", 60.0)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch, release = OrphanWatch(), Release("app", "v1", ReleaseStep.CUTTING, "v2", changed_ms=5)
    assert not watch.has_found(release)
    now += 59
    assert not watch.has_found(release)
    at_work = replace(release, changed_ms=6)
    assert not watch.has_found(at_work), "its coordinator has shown that it works"
    now += 91
    assert watch.has_found(at_work)
    assert not watch.has_found(at_work), "whoever completes it has time to do so"
    now += 91
    assert watch.has_found(at_work)


def test_a_release_in_no_switch_or_in_a_joint_one_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for release in (
        Release("app", "v1", ReleaseStep.GATED, "v2"),
        Release("app", "v1", ReleaseStep.CUTTING, "v2", joint={"app": "v2", "other": "v2"}),
    ):
        watch = OrphanWatch()
        assert not watch.has_found(release)
        now += 10_000
        assert not watch.has_found(release)
