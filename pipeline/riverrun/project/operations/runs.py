"""Bounded runs of an application: the next one, and those that have been."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.project.bounded import BoundedRun

if TYPE_CHECKING:
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.spark.planning.runs import RunRecord
    from riverrun.spark.ranges import RunRange


def bounded_run(
    chosen: ChosenVersion,
    start: str | RunRange,
    to: str,
    *,
    advance_stream_time_to: str | None,
    wall_clock_punctuation: str | None,
    max_records_per_slice: int,
) -> BoundedRun:
    """Return a bounded run of an application over a range, which this determines.

    Args:
        chosen: The application.
        start: Start of the range, or a whole range.
        to: End of the range; ignored if `start` is a whole range.
        advance_stream_time_to: Time to which event time advances after the last record.
        wall_clock_punctuation: `refuse`, `once` or `never`; None for the setting.
        max_records_per_slice: Size of slices.
    """
    from riverrun.spark.ranges import resolve, time_ms

    application = chosen.processing()
    if wall_clock_punctuation is not None:
        application = application.with_wall_clock_punctuation(wall_clock_punctuation)
    connected = chosen.on_brokers(application)
    return BoundedRun(
        connected,
        resolve(connected, start, to) if isinstance(start, str) else start,
        chosen.cluster,
        lambda: chosen.require_no_switch(application),
        advance_to_ms=None if advance_stream_time_to is None else time_ms(advance_stream_time_to),
        max_records_per_slice=max_records_per_slice,
    )


def runs_of(chosen: ChosenVersion, limit: int | None) -> list[RunRecord]:
    """Return the bounded runs of an application, latest first; with a limit only the latest."""
    from riverrun.spark.planning.runs import RunLog

    return RunLog(chosen.cluster.admin).runs(chosen.name)[:limit]
