"""The bar of long operations: records done, their rate, and the remaining time."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from riverrun.hosting.progress import reporting_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Task, TaskID

    from riverrun.hosting.progress import Progress as WorkProgress

# Rate and remaining time are estimated from so long: progress comes in steps, such as a slice's tasks.
_SPEED_PERIOD_SECONDS = 3600.0


class _Rate(ProgressColumn):
    """Records per second."""

    def render(self, task: Task) -> Text:
        """Show it, once it is known."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


class _Shown:
    """One line of a bar, for the work that reported last. Threads may call it."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._lock = threading.Lock()
        self._doing = ""
        self._line: TaskID | None = None

    def show(self, progress: WorkProgress) -> None:
        """Update the bar; other work starts a new line in the place of the one before."""
        with self._lock:
            if self._line is None or self._doing != progress.doing:
                if self._line is not None:
                    self._bar.remove_task(self._line)
                self._doing, self._line = progress.doing, self._bar.add_task(progress.doing, total=None)
            self._bar.update(self._line, completed=progress.done, total=progress.everything)


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Console]:
    """Show the progress of the work in this context, in records, in a bar that is gone when it ends.

    Outside of a terminal and a notebook, it shows nothing.

    Yields:
        A console that prints above the bar.
    """
    console = console or Console(stderr=True, emoji=False)
    if not (console.is_terminal or console.is_jupyter):
        yield console
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=_SPEED_PERIOD_SECONDS,
    )
    with bar, reporting_progress(_Shown(bar).show):
        yield bar.console
