"""Checks of what an application has published, and their history."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.checks import check_number
from riverrun.errors import ConfigError
from riverrun.hosting.process import SystemClock
from riverrun.project.live import work_of

if TYPE_CHECKING:
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.quality.drafts import SuiteDraft
    from riverrun.releases.check_log import CheckRecord
    from riverrun.releases.live_quality import LiveVerdict

# Limited, since the rows of a sample are in memory.
SAMPLE, MOST_SAMPLED = 10_000, 100_000
"""Number of offsets from which expectations are drafted: default and maximum."""
_SUITES = "suites"


class AppChecks:
    """Checks of an application by its expectations.

    Args:
        chosen: The application and its version.
    """

    def __init__(self, chosen: ChosenVersion) -> None:
        self._chosen = chosen

    def run(self, since: str = "") -> LiveVerdict:
        """Judge the published records of the live version and the work of its instances, and record the findings.

        Args:
            since: `last`, for records since the last check that passed; a vector of the public topics, or a time. Empty for
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

    def is_judged(self) -> bool:
        """Return whether all that is published has passed checks, the last one by the present expectations.

        Raises:
            BrokerError: If brokers do not answer.
        """
        from riverrun.releases.live_quality import is_judged

        return is_judged(self._chosen.connected())

    def history(self, limit: int | None = None) -> list[CheckRecord]:
        """Return the checks and gates that were run, latest first.

        Args:
            limit: Maximum number; all by default.
        """
        from riverrun.releases.check_log import CheckLog

        return CheckLog(self._chosen.cluster.admin).checks(self._chosen.name)[:limit]

    def suggest(self, output: str, *, sample: int = SAMPLE) -> SuiteDraft:
        """Draft a suite of expectations from the latest rows of an output; `save` of the result writes it to a file.

        Args:
            output: The public topic.
            sample: Number of the latest offsets to read.

        Raises:
            ConfigError: If there is no such output, or it has no rows.
            TopicError: If the topic does not exist.
            DeserializationError: If a record cannot be read.
        """
        from riverrun.config import OutputKind
        from riverrun.quality.drafts import draft
        from riverrun.releases.live_quality import sample_rows
        from riverrun.releases.topology import outputs

        check_number("sample", sample, 1, MOST_SAMPLED)
        connected = self._chosen.connected()
        rows = sample_rows(connected, output, sample)
        if not rows:
            message = f"{output} has no rows to draft expectations from"
            raise ConfigError(message, hint=f"Process records first: riverrun run {self._chosen.name}")
        is_log = outputs(connected.application)[output].kind is OutputKind.LOG
        with tempfile.TemporaryDirectory(prefix="riverrun-") as directory:
            return draft(Path(directory) / "sample", output, rows, is_log=is_log)

    def suite_path(self, output: str) -> Path:
        """Return where the suite of an output belongs: in the directory that `quality` names, or else in `suites`."""
        quality = self._chosen.config.quality
        directory = self._chosen.project.path.parent / _SUITES
        if isinstance(quality, str) and os.sep in quality and not quality.endswith(".json"):
            directory = Path(quality)
        return directory / f"{output}.json"
