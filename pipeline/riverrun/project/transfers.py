"""Methods of a project for imports and exports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.project.following import FollowedExport
from riverrun.project.polled_imports import FollowedImport
from riverrun.project.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.project.riverrun import Riverrun
    from riverrun.serde.api import Serde
    from riverrun.spark.ranges import RunRange
    from riverrun.transfers.exports import ExportSpec, ExportSummary
    from riverrun.transfers.imports import ImportSpec, ImportSummary


def run_import(
    project: Riverrun,
    spec: ImportSpec,
    *,
    packages: Sequence[str] = (),
    on_progress: Callable[[int, int], None] | None = None,
    on_batch: Callable[[RunRange], None] = lambda _ranges: None,
) -> ImportSummary:
    """Write new data of a source to a topic, exactly once (`riverrun.transfers.imports.run_import`).

    Args:
        project: Has the brokers, the Spark session and the file.
        spec: Source, topic and form of the records.
        packages: Maven coordinates of libraries that the format needs.
        on_progress: Called repeatedly with the records written and all rows of the batch.
        on_batch: Called after each finished batch with the offsets of its records.

    Returns:
        The numbers of rows, records and batches.

    Raises:
        ConfigError: If the file or the format does not exist, or the schema does not fit.
        StreamsError: As in `run_import`.
    """
    from riverrun.transfers import imports
    from riverrun.transfers.spec_checks import check_import, source_here

    sessions = project.spark_sessions
    check_import(spec, sessions.settings, sessions.master, packages)
    here = source_here(spec, sessions.settings, sessions.master)
    with followed(on_progress):
        spark = partial(sessions.session, packages)
        return imports.run_import(spec, project.cluster.admin, spark, here=here, on_batch=on_batch)


def run_export(
    project: Riverrun,
    spec: ExportSpec,
    *,
    packages: Sequence[str] = (),
    on_progress: Callable[[int, int], None] | None = None,
    on_batch: Callable[[RunRange], None] = lambda _ranges: None,
) -> ExportSummary:
    """Write new records of a topic to a target, each once (`riverrun.transfers.exports.run_export`).

    Arguments are as those of `run_import`; `on_batch` gets the offsets that a batch has exported.

    Returns:
        The last batch, and the numbers of records and rows.

    Raises:
        ConfigError: If the format does not exist, or the schema is invalid. With `app`, if it neither reads nor writes the
            topic, or if it does not know the size of its windows.
        StreamsError: As in `run_export`.
    """
    from riverrun.spark.formats import check_format
    from riverrun.transfers import exports
    from riverrun.transfers.spec_checks import check_schema

    check_format(spec.format, project.spark_sessions.settings, packages)
    check_schema(spec.schema)
    serdes = _serdes_of(project, spec) if spec.app else None
    with followed(on_progress):
        spark = partial(project.spark_sessions.session, packages)
        return exports.run_export(spec, project.cluster.admin, spark, serdes=serdes, on_batch=on_batch)


def _serdes_of(project: Riverrun, spec: ExportSpec) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes with which the application of an export reads or writes the topic."""
    from riverrun.topics.serdes import declared_serdes, lacks_size

    key, value = declared_serdes(project.app(spec.app, version=spec.version).topology(), spec.topic)
    if lacks_size(key):
        message = f"{spec.app} does not say when the windows of {spec.topic} end"
        raise ConfigError(message, hint="Give its serde of keys their size: windowed(STRING, timedelta(minutes=5)).")
    return key, value


def export(project: Riverrun, name: str) -> FollowedExport:
    """Return an export that the file declares in `[exports.NAME]`, to follow it without Spark.

    Args:
        project: Has the brokers, the Spark session and the file.
        name: Name of the export, as in `[exports.NAME]`.

    Raises:
        ConfigError: If there is no such export, or its declaration has an error.
    """
    project.config.declared("exports", name)
    return FollowedExport(project.cluster, project.config, name)


def declared_import(project: Riverrun, name: str) -> FollowedImport:
    """Return an import that the file declares in `[imports.NAME]`, to poll its source without Spark.

    Args:
        project: Has the brokers, the Spark session and the file.
        name: Name of the import, as in `[imports.NAME]`.

    Raises:
        ConfigError: If there is no such import, or its declaration has an error.
    """
    project.config.declared("imports", name)
    return FollowedImport(project.cluster, project.config, name)
