"""`millrace run`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import settings_of

if TYPE_CHECKING:
    from pipeline.hosting.application import Application
    from pipeline.spark.ranges import RunRange

_LOOK_SECONDS = 0.5


def run(
    context: typer.Context,
    app: Annotated[str, typer.Argument(help="The application's name in streams.toml.")],
    start: Annotated[
        str, typer.Option("--from", help="committed, earliest, a vector (topic-0@12,topic-1@7) or a time.")
    ] = "committed",
    end: Annotated[str, typer.Option("--to", help="latest, a vector or a time.")] = "latest",
    version: Annotated[str | None, typer.Option(help="Which version; the live one if left out.")] = None,
    master: Annotated[str, typer.Option(help="Spark's master URL.")] = "local[2,4]",
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be processed, and stop.")] = False,
) -> None:
    """Process a bounded range of offsets on Spark, exactly once."""
    from pipeline.kafka.admin import Admin  # noqa: PLC0415 - as above
    from pipeline.releases.build import build_topology  # noqa: PLC0415 - engines load where they are used
    from pipeline.spark.job import run as run_job  # noqa: PLC0415 - as above
    from pipeline.spark.ranges import resolve  # noqa: PLC0415 - as above
    from pipeline.spark.session import spark_session  # noqa: PLC0415 - as above

    application = settings_of(context).live_application(app, version)
    chosen = resolve(application, Admin(application.kafka), start, end)
    typer.echo(f"{application.id}: {chosen.size} offsets, {chosen}")
    if plan:
        return
    with _Progress(application, chosen):
        summary = run_job(application, chosen, spark_session(master), build_topology)
    dropped = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.dropped.items())) or "none"
    typer.echo(f"{summary.processed} records processed in {summary.slices} slices; dropped: {dropped}")


class _Progress:
    """A bar that follows the committed offsets, as any other process could."""

    def __init__(self, application: Application, chosen: RunRange) -> None:
        self._application = application
        self._chosen = chosen
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        from rich.progress import Progress  # noqa: PLC0415 - as above

        from pipeline.kafka.admin import Admin  # noqa: PLC0415 - as above
        from pipeline.spark.job import progress  # noqa: PLC0415 - as above

        admin = Admin(self._application.kafka)
        with Progress(transient=True) as bar:
            task = bar.add_task(self._application.id, total=self._chosen.size)
            while not self._done.wait(_LOOK_SECONDS):
                bar.update(task, completed=progress(self._application, admin, self._chosen))
