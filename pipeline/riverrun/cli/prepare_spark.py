"""`riverrun prepare-spark`."""

from __future__ import annotations

from typing import Any

import typer

from riverrun.cli.project import settings_of

_MEBIBYTE = 1024 * 1024


def prepare_spark(context: typer.Context) -> None:
    """Let Spark sessions on this machine start in half the time, with an archive of the classes that Java loads for them.

    A machine or image needs it once, and again after an update of Java or Spark. The archive is in --home.
    """
    from riverrun.spark.engine.java_classes import archive_classes, classes_archive
    from riverrun.spark.engine.java_output import quiet_java
    from riverrun.spark.session import spark_session

    settings = settings_of(context)
    archive = classes_archive(settings.environ, settings.home)

    def started(java_options: str) -> Any:
        return spark_session("local[1]", {"spark.driver.extraJavaOptions": java_options}, starting=quiet_java)

    if archive.exists():
        typer.echo(f"The archive is there: {archive}")
        return
    archive_classes(started, archive)
    typer.echo(f"The archive is made, {archive.stat().st_size / _MEBIBYTE:.0f} MiB: {archive}")
