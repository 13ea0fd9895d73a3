"""`millrace worker`."""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import settings_of

if TYPE_CHECKING:
    from pipeline.records import TopicPartition
    from pipeline.worker.worker import WorkerState


_COLLECTED_AFTER = 50_000
"""Python looks for cycles after so many new objects. Records make none; its default of 700 costs a quarter of reading them."""


def worker(
    context: typer.Context,
    app: Annotated[str, typer.Argument(help="The application's name in streams.toml.")],
    version: Annotated[str | None, typer.Option(help="Which version; the live one if left out.")] = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop once all that is in the topics is processed.")
    ] = False,
) -> None:
    """Run an application until it is told to stop (Ctrl-C or SIGTERM)."""
    from pipeline.worker.worker import Worker  # noqa: PLC0415 - engines load where they are used

    running = Worker(
        settings_of(context).live_application(app, version), on_state=_show_state, on_restore=_show_restore
    )
    gc.set_threshold(_COLLECTED_AFTER)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: running.stop())
    summary = running.run(until_caught_up=until_caught_up)
    dropped = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.dropped.items())) or "none"
    typer.echo(f"{summary.processed} records processed in {summary.commits} commits; dropped: {dropped}")


def _show_state(state: WorkerState) -> None:
    typer.echo(f"Worker is {state.value}")


def _show_restore(changelog: TopicPartition, done: int, expected: int) -> None:
    if done == expected or done % 100_000 < 10_000:  # noqa: PLR2004 - a line now and then
        typer.echo(f"Restored {done} of {expected} offsets, now {changelog}")
