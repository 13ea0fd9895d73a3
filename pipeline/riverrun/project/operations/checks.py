"""Checks of an application's published records, and of the work of its instances, by its expectations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from riverrun.hosting.clock import SystemClock
from riverrun.project.operations.instances import work_of

if TYPE_CHECKING:
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.releases.quality.check_log import CheckRecord
    from riverrun.releases.quality.live_quality import LiveVerdict


def check_published(chosen: ChosenVersion, since: str) -> LiveVerdict:
    """Judge the published records and the work of instances of the live version, and note the result in the history of checks.

    Args:
        chosen: The application.
        since: The first records to judge: `last`, a vector, a time, or empty for all.
    """
    from riverrun.hosting.actor import this_user
    from riverrun.releases.quality.live_quality import LiveCheck

    cluster = chosen.cluster
    connected, ask = chosen.on_brokers(chosen.processing()), partial(work_of, chosen)
    check = LiveCheck(connected, cluster.sessions.session, SystemClock(), ask)
    return check.run(since, cluster.by or this_user())


def checks_of(chosen: ChosenVersion, limit: int | None) -> list[CheckRecord]:
    """Return the history of checks, latest first; with a limit only the latest."""
    from riverrun.releases.quality.check_log import CheckLog

    return CheckLog(chosen.cluster.admin).checks(chosen.name)[:limit]
