"""`millrace describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import App, Version, settings_of
from pipeline.records import TaskId

if TYPE_CHECKING:
    from pipeline.hosting.application import Application

Code = Annotated[
    bool,
    typer.Option("--code", metavar="", help="Also the code that tasks generate, and why nodes are not part of it."),
]


def describe(context: typer.Context, app: App, version: Version = None, code: Code = False) -> None:  # noqa: FBT002
    """Show an application's topology, as Kafka Streams describes it. With --version no broker is asked."""
    application = settings_of(context).project().app(app, version).loaded()
    typer.echo(application.topology.describe().rstrip())
    typer.echo(f"Fingerprint: {application.topology.fingerprint()}")
    if code:
        _show_code(application)


def _show_code(application: Application) -> None:
    from pipeline.runtime.fused_code import sub_topology_code

    for sub in application.topology.sub_topologies():
        spec = application.task_spec(TaskId(sub.id, 0), ())
        typer.echo(f"\n{sub_topology_code(spec.sub_topology, spec.handlers, spec.timestamp_extractor)}".rstrip())
