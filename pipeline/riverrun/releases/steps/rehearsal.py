"""Describes in words what each step of a release would do, before it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.releases.control_topic.registry import Release

_WOULD: Mapping[str, str] = {
    "start": "begin the release of {argument}; there is no way back from the last release any more",
    "reprocess": "compute {candidate} up to where {live} stands, into staging topics",
    "gate": "judge {candidate} where it and {live} have processed the same offsets; nothing public changes",
    "approve": "approve the warnings of verdict {argument}",
    "cut": "make {candidate} live in the place of {live}, correct the public tables by what differs,"
    " and publish the logs that only {candidate} writes",
    "rollback": "make {previous} live again in the place of {live}, correct the public tables by what differs,"
    " and publish the logs that only {previous} writes",
    "abort": "give the release of {candidate} up, and delete what it has computed: staging and internal topics, offsets, state",
    "retire": "delete what {retired} has computed: staging and internal topics, offsets, state; there is no way back to it",
    "restore": "note that {argument} is live",
}


def rehearsed(step: str, release: Release, argument: str = "") -> str:
    """Describe what a step would do to a release.

    Args:
        step: The step.
        release: The release, at a step where this one may be taken.
        argument: The version or the verdict that the step is about.
    """
    names = {"live": release.live, "candidate": release.candidate, "previous": release.previous, "argument": argument}
    names["retired"] = argument or (release.candidate if release.step.value == "rolled-back" else release.previous)
    return f"{release.app}: this would {_WOULD[step].format(**names)}"
