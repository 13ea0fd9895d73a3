"""The versions of an application that a console looks at."""

from __future__ import annotations

import pytest

from riverrun.config import AppConfig
from riverrun.console.looking import _versions
from riverrun.hosting.release import Release, ReleaseStep

DECLARED = AppConfig("clicks", "m:f", versions={"v2": "m:g"})


@pytest.mark.parametrize(
    ("release", "seen"),
    [
        (Release("clicks", "v1"), ["v1"]),
        (Release("clicks", "v1", ReleaseStep.REPROCESSED, "v2"), ["v1", "v2"]),
        (Release("clicks", "v1", ReleaseStep.ABORTED, "v2"), ["v1"]),
        (Release("clicks", "v2", ReleaseStep.LIVE, "v2", "v1"), ["v2", "v1"]),
        (Release("clicks", "v2", ReleaseStep.LIVE, "v2", "v0"), ["v2"]),
    ],
    ids=["never released", "under way", "given up", "live, with a shadow", "the one before is not declared any more"],
)
def test_the_versions_that_may_run_are_looked_at(release: Release, seen: list[str]) -> None:
    assert _versions(release, DECLARED) == seen
