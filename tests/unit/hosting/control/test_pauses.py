"""An instance's reports of its pauses at barriers."""

from __future__ import annotations

from riverrun.hosting.barrier_listener import Pauses
from riverrun.hosting.release import Release
from riverrun.runtime.barrier import Barrier


def test_an_instance_says_at_which_barrier_it_pauses_and_for_how_long() -> None:
    now = 10.0
    pauses = Pauses("v1", lambda: now)
    pauses.note(Release("app", "v1", barrier=Barrier("m", 0, {"v2": {}})))
    assert (pauses.barrier, pauses.last_s) == (None, None), "another version pauses"
    pauses.note(Release("app", "v1", barrier=Barrier("m", 0, {"v1": {}, "v2": {}})))
    assert (pauses.barrier, pauses.last_s) == ("m", None)
    now = 12.5
    pauses.note(Release("app", "v1", barrier=Barrier("m", 1, {"v1": {"in-0": 3}})))
    assert not pauses.last_s, "phases belong to one pause"
    pauses.note(Release("app", "v2"))
    assert (pauses.barrier, pauses.last_s) == (None, 2.5)
