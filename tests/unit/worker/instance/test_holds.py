"""An instance's reports of its holds."""

from __future__ import annotations

from riverrun.hosting.publication import LiveVersion, Mark
from riverrun.worker.instance_duties import Holds


def test_an_instance_says_for_which_mark_it_holds_and_how_long_the_last_hold_was() -> None:
    now = 10.0
    holds = Holds("v1", lambda: now)
    holds.note(LiveVersion("app", "v1", mark=Mark("m", 0, {"v2": {}})))
    assert (holds.mark, holds.last_s) == (None, None), "another version holds"
    holds.note(LiveVersion("app", "v1", mark=Mark("m", 0, {"v1": {}, "v2": {}})))
    assert (holds.mark, holds.last_s) == ("m", None)
    now = 12.5
    holds.note(LiveVersion("app", "v1", mark=Mark("m", 1, {"v1": {"in-0": 3}})))
    assert not holds.last_s, "phases belong to one hold"
    holds.note(LiveVersion("app", "v2"))
    assert (holds.mark, holds.last_s) == (None, 2.5)
