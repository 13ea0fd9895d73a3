"""Output of commands: what records and errors contain is shown, and does not control the terminal."""

from __future__ import annotations

import typer

from riverrun.records import visible


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text to the standard output, or to the error output."""
    typer.echo(visible(text.decode() if isinstance(text, bytes) else str(text)), err=err, nl=nl)
