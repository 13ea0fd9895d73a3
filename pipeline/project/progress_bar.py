"""The bar of what takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

_SPEED_PERIOD_SECONDS = 3600.0
"""What rate and remaining time are estimated from: progress comes in steps, as that of a slice's tasks."""


def progress_bar(console: Console, *further: ProgressColumn) -> Progress:
    """A bar with counts, further columns, and times, that is gone when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *further,
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=_SPEED_PERIOD_SECONDS,
    )
