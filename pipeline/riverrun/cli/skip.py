"""`riverrun skip`."""

from __future__ import annotations

from typing import Annotated

import typer

from riverrun.cli.project import App, Version, settings_of
from riverrun.errors import RangeError
from riverrun.records import TopicPartition, whole_number


def skip(
    context: typer.Context,
    app: App,
    record: Annotated[str, typer.Argument(help="Place of the record as errors name it: topic-partition@offset.")],
    version: Version = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Show what the command would skip, and stop.")
    ] = False,
) -> None:
    """Skip one input record that cannot be processed. State and all other records stay as they are.

    The record must be the next one of its task, and no instance may run the task. It goes to the dead letter topic, if
    the application has one.
    """
    tp, offset = _place(record)
    chosen = settings_of(context).project().app(app, version)
    planned = chosen.plan_skip(tp, offset)
    if dry_run:
        typer.echo(f"{record} of task {planned.task_id} would be skipped; nothing was done")
        return
    done = chosen.skip(planned)
    typer.echo(f"{record} of task {done.task_id} is skipped")


def _place(text: str) -> tuple[TopicPartition, int]:
    """Return the partition and the offset of a record.

    Raises:
        RangeError: If the text does not name a record.
    """
    name, _, offset = text.rpartition("@")
    try:
        tp = TopicPartition.parse(name)
    except ValueError:
        tp = None
    if tp is None or whole_number(offset) is None:
        message = f"{text!r} does not name a record"
        raise RangeError(message, hint="Write topic-partition@offset, such as clicks-0@8.")
    return tp, int(offset)
