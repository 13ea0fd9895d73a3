"""Checks of what an application has published, and their history."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from riverrun.hosting.process import SystemClock
from riverrun.project.live import work_of

if TYPE_CHECKING:
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.releases.live_quality import CheckRecord, LiveVerdict


class AppChecks:
    """Checks of an application by its expectations.

    Args:
        chosen: The application.
    """

    def __init__(self, chosen: ChosenVersion) -> None:
        self._chosen = chosen

    def run(self, since: str = "") -> LiveVerdict:
        """Judge the published records of the live version and the work of its instances, and note the findings.

        Args:
            since: `last`, for records that are new since the last check; a vector of the public topics, or a time. Empty for
                everything there is: then tables are judged by their rows.

        Raises:
            ConfigError: If the expectations cannot be loaded, or are of an output or a store that does not exist.
            RangeError: If `since` is not a point of the public topics.
            DeserializationError: If a record cannot be read.
        """
        from riverrun.hosting.process import this_user
        from riverrun.releases.live_quality import LiveCheck

        chosen, cluster = self._chosen, self._chosen.cluster
        connected, ask = chosen.on_brokers(chosen.processing()), partial(work_of, chosen)
        check = LiveCheck(connected, cluster.sessions.session, SystemClock(), ask)
        return check.run(since, cluster.by or this_user())

    def history(self, limit: int | None = None) -> list[CheckRecord]:
        """Return the checks that were run, latest first.

        Args:
            limit: Maximum number; all by default.
        """
        from riverrun.releases.live_quality import CheckLog

        return CheckLog(self._chosen.cluster.admin).checks(self._chosen.name)[:limit]
