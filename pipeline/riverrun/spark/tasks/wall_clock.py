"""Handles punctuations by the wall clock, which means nothing in a bounded run. Imports no pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import UnsupportedByHostError

if TYPE_CHECKING:
    from riverrun.hosting.application import Application
    from riverrun.runtime.task import Task


def check_wall_clock(application: Application, task: Task) -> None:
    """Refuse processors that schedule by the wall clock, unless a setting says how to treat them.

    Raises:
        UnsupportedByHostError: If there is a processor like this, and no setting.
    """
    if task.schedules_wall_clock and application.config.streams.bounded_wall_clock_punctuation == "refuse":
        message = f"{application.id} schedules punctuations by the wall clock, which means nothing in a bounded run"
        hint = (
            "Use PunctuationType.STREAM_TIME; or say --wall-clock-punctuation=once (each is called at the end of a slice) or "
            "never (bounded.wall.clock.punctuation in streams.toml)."
        )
        raise UnsupportedByHostError(message, hint=hint)


def punctuate_wall_clock(application: Application, task: Task) -> None:
    """Call wall-clock punctuations at the end of a slice, if the setting says so.

    Raises:
        UnsupportedByHostError: If one was scheduled during the slice, and no setting says how to treat it.
    """
    check_wall_clock(application, task)
    if application.config.streams.bounded_wall_clock_punctuation == "once":
        task.punctuate_wall_clock_once()
