"""`riverrun snapshot`."""

from __future__ import annotations

import typer

from riverrun.cli.project import App, Version, settings_of


def snapshot(
    context: typer.Context,
    app: App,
    version: Version = None,
) -> None:
    """Publish the present state of all tasks to snapshot.url. Workers go on meanwhile."""
    from riverrun.project.progress_bar import progress_bar

    chosen = settings_of(context).project().app(app, version)
    with progress_bar():
        published = chosen.snapshot()
    for manifest in published:
        typer.echo(f"{manifest.task}: {manifest.name}, {len(manifest.files)} files, {manifest.size_bytes} bytes")
    typer.echo(f"{len(published)} snapshots are at {chosen.config.streams.snapshot_url}")
