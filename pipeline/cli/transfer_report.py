"""Shows the progress of imports and exports in a shell."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import ProgressColumn
from rich.text import Text

from pipeline.project.progress_bar import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Task


class _Rate(ProgressColumn):
    """Records per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


@contextmanager
def followed_transfer(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar with records, rate and remaining time; yields the function that advances it, or None without a terminal.

    Args:
        name: Description of the transfer.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with progress_bar(console, _Rate()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, everything: bar.update(task, completed=min(done, everything), total=everything)
