"""Texts about runs whose outputs a gate holds back: what is known, and what can be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from riverrun.errors import UnderWayError
from riverrun.hosting.gated import GateVerdict, HeldRun, HeldState, PublishedRun, held_between
from riverrun.hosting.release import Release, ReleaseChange

FAILED = GateVerdict("d1", "in-0@5", "s", outcomes={"rows": "failed: 3"}, critical=("rows",))
WARNED = replace(FAILED, critical=(), warnings=("rows",))
HELD = HeldRun("a1", "v1", HeldState.HELD, verdict=FAILED)


@pytest.mark.parametrize(
    ("held", "progress", "hint"),
    [
        (
            HELD,
            "its gate has failed: rows",
            "riverrun held judge clicks. Or take the run back: riverrun held discard clicks",
        ),
        (replace(HELD, verdict=WARNED), "warnings without an approval: rows", "held publish clicks --approve d1"),
        (replace(HELD, verdict=None), "its gate could not judge them", "riverrun held judge clicks"),
        (replace(HELD, state=HeldState.BEGUN), "it is under way, or was interrupted", "riverrun run clicks"),
        (replace(HELD, state=HeldState.PUBLISHING), "they are being published", "riverrun held publish clicks"),
        (replace(HELD, state=HeldState.DISCARDING), "they are being discarded", "riverrun held discard clicks"),
    ],
)
def test_each_state_says_what_to_do(held: HeldRun, progress: str, hint: str) -> None:
    assert held.progress.endswith(progress)
    assert held.hint("clicks").endswith(hint) or hint in held.hint("clicks")
    assert held.progress in str(held)
    assert "a1" in str(Release("clicks", "v1", held=held))
    with pytest.raises(UnderWayError, match="the outputs of run a1 are held back"):
        Release("clicks", "v1", held=held).require_nothing_held()


def test_a_release_without_such_a_run_lets_all_process() -> None:
    Release("clicks", "v1").require_nothing_held()


def test_the_history_says_what_became_of_a_run() -> None:
    ended = [held_between(replace(HELD, state=state), None) for state in HeldState]
    assert ended == ["run a1 is over", "run a1 is over", "run a1 is published", "run a1 is discarded"]
    assert held_between(None, None) == ""
    before = Release("clicks", "v1", held=replace(HELD, state=HeldState.DISCARDING), revision=4)
    assert ", run a1 is discarded, held changed" in str(
        ReleaseChange.between(before, Release("clicks", "v1", revision=5))
    )
    begun = ReleaseChange.between(None, Release("clicks", "v1", held=replace(HELD, state=HeldState.BEGUN), revision=1))
    assert "run a1 is begun" in str(begun)


def test_a_published_run_says_how_many_records_and_why() -> None:
    assert str(PublishedRun("a1", 1)) == "run a1: 1 record published"
    assert str(PublishedRun("a1", 2, WARNED)).startswith("run a1: 2 records published\nverdict d1, at in-0@5")
