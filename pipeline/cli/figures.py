"""Shows in a shell what workers and runs have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Records that were not processed, by reason."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(dropped.items())) or "none"


def show_figures(done: str, dropped: Mapping[str, int], totals: Mapping[str, float]) -> None:
    """Print what was done, what was dropped, and what processors have counted.

    Args:
        done: What was done, in words.
        dropped: Records that were not processed, by reason.
        totals: Totals of processors' sensors by the text of their names.
    """
    typer.echo(f"{done}; dropped: {dropped_text(dropped)}")
    for name, value in totals.items():
        typer.echo(f"{name}: {value:g}")
