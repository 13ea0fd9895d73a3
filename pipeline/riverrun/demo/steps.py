"""Measures the steps of the demo, and shows their progress."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Task

_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.05


@dataclass(frozen=True)
class Steps:
    """The seconds of each step so far."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a step; times of one name add up."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - begun

    def table(self) -> Table:
        """Return the seconds of the steps that took any time, and their sum."""
        shown = Table("step", box=None, padding=(0, 0, 0, 2), header_style="dim", show_footer=True)
        shown.columns[0].footer = "all"
        total = sum(self.seconds.values())
        shown.add_column("seconds", f"{total:.1f}", justify="right")
        for name, seconds in self.seconds.items():
            if seconds >= _SHORTEST_SECONDS:
                shown.add_row(name, f"{seconds:.1f}")
        return shown


class _Rate(ProgressColumn):
    """Shows the amount done per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s", style="dim")


def progress_of(console: Console, unit: str) -> Progress:
    """Return a progress bar with size, rate and remaining time; it shows nothing where there is no terminal."""
    amount = TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {unit}")
    columns = (TextColumn("{task.description}"), BarColumn(None), amount, _Rate(), TimeRemainingColumn(compact=True))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def following(console: Console, what: str, total: float, unit: str, done: Callable[[], float]) -> Iterator[None]:
    """Show the progress of a step while the block runs; `done` returns the amount, and another thread calls it."""
    ended = threading.Event()
    with progress_of(console, unit) as bar:
        task = bar.add_task(what, total=total)

        def look() -> None:
            while not ended.wait(_LOOK_SECONDS):
                # `done` may fail as long as there is nothing to see.
                with suppress(StreamsError):
                    bar.update(task, completed=min(done(), total))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()
