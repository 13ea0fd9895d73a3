"""`millrace snapshot`."""

from __future__ import annotations

import typer

from pipeline.cli.project import App, Version, settings_of
from pipeline.errors import ConfigError


def snapshot(
    context: typer.Context,
    app: App,
    version: Version = None,
) -> None:
    """Publish the state of all tasks as it is now to snapshot.url. Workers that run are not disturbed."""
    from pipeline.hosting.application import prepare, with_topics
    from pipeline.hosting.clock import SystemClock
    from pipeline.hosting.snapshots import publish_snapshots
    from pipeline.kafka.admin import Admin

    application = settings_of(context).application(app, version)
    if not application.config.streams.snapshot_url:
        message = f"Nothing says where snapshots of {app} are kept"
        raise ConfigError(message, hint=f'Set "snapshot.url" in [apps.{app}.config].')
    admin = Admin(application.kafka)
    application = with_topics(application, admin)
    published = publish_snapshots(application, prepare(application, admin), admin, SystemClock())
    for manifest in published:
        typer.echo(f"{manifest.task}: {manifest.name}, {len(manifest.files)} files, {manifest.size_bytes} bytes")
    typer.echo(f"{len(published)} snapshots are at {application.config.streams.snapshot_url}")
