"""Shows the work of workers and runs in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Return the number of dropped records by reason."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(dropped.items())) or "none"


def show_figures(done: str, dropped: Mapping[str, int], totals: Mapping[str, float]) -> None:
    """Print the work done, the dropped records, and the totals of processors' sensors.

    Args:
        done: The work done, in words.
        dropped: Numbers of dropped records by reason.
        totals: Totals of processors' sensors by the text of their names.
    """
    typer.echo(f"{done}; dropped: {dropped_text(dropped)}")
    for name, value in totals.items():
        typer.echo(f"{name}: {value:g}")
