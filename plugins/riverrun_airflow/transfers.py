"""Operators that import and export (`riverrun import`, `riverrun export`). No engine loads before a task runs."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from riverrun.config.secrets import expanded
from riverrun_airflow.acting import acting, end_at_once
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.operators import documented
from riverrun_airflow.sessions import logged_progress, transfer
from riverrun_airflow.submission import concluded, is_apart, submit
from riverrun_airflow.wishes import TransferWish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class ImportOperator(BaseOperator):
    """Writes new rows of a source to a topic, exactly once. A retry completes an interrupted attempt.

    Args:
        source: A path, or the table of a `jdbc` source.
        topic: The topic to write to.
        format: Any format Spark reads.
        options: The reader's options. `${NAME}` in an option is replaced from the environment when the task runs, so Airflow
            shows no password of a task.
        schema: The rows' schema as DDL.
        key: Key columns.
        value: The column of values; by default, a JSON object of each row.
        timestamp: The column of event times; by default, the present time.
        missing_timestamp: Handling of rows without a time in that column: `fail`, or `now`.
        not_a_number: Handling of NaN and infinity, which JSON does not have: `fail`, or `null`.
        incremental: A column that only rises.
        name: Name of the import; by default, the topic.
        parts: Number of parts of a batch, each one transaction.
        packages: Maven coordinates of packages that the format needs, as a JDBC driver.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: The connection.
    """

    template_fields: Sequence[str] = ("config", "source", "topic", "options", "name", "master", "riverrun_conn_id")

    def __init__(
        self,
        *,
        source: str,
        topic: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        options: Mapping[str, str] | None = None,
        schema: str | None = None,
        key: Sequence[str] = (),
        value: str | None = None,
        timestamp: str | None = None,
        incremental: str | None = None,
        name: str = "",
        parts: int = 4,
        missing_timestamp: str = "fail",
        not_a_number: str = "fail",
        packages: Sequence[str] = (),
        master: str = "",
        apart: bool | None = None,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.source = source
        self.topic = topic
        self.format = format
        self.options = dict(options or {})
        self.schema = schema
        self.key = tuple(key)
        self.value = value
        self.timestamp = timestamp
        self.incremental = incremental
        self.name = name
        self.parts = parts
        self.missing_timestamp = missing_timestamp
        self.not_a_number = not_a_number
        self.packages = tuple(packages)
        self.master = master
        self.apart = apart

    def execute(self, context: Context) -> str:
        """Import, and return the number of records as text."""
        return acting(lambda: transferred(self, context, self._wish()))

    def driven(self, context: Context, event: dict[str, Any]) -> str:
        """Return the number of records that a driver has imported."""
        return concluded(self, context, event, lambda note: note.found)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt aborts open transactions."""
        end_at_once()

    def _wish(self) -> TransferWish:
        from riverrun.transfers.import_spec import ImportSpec

        spec = ImportSpec(
            topic=self.topic,
            source=self.source,
            format=self.format,
            options=options_of(self.options),
            schema=self.schema,
            key=self.key,
            value=self.value,
            timestamp=self.timestamp,
            incremental=self.incremental,
            name=self.name,
            parts=self.parts,
            missing_timestamp=self.missing_timestamp,
            not_a_number=self.not_a_number,
        )
        return TransferWish("import", asdict(spec), self.packages, self.master)


class ExportOperator(BaseOperator):
    """Writes new records of a topic to a target. A retry repeats an interrupted batch, and writes nothing twice.

    Args:
        topic: The topic to read.
        target: A directory, or the table of a `jdbc` target.
        format: Any format Spark writes.
        options: The writer's options; `${NAME}` as above.
        schema: Schema of JSON values as DDL: fields become columns.
        is_binary: Whether keys and values are bytes rather than text.
        name: Name of the export; by default, the topic.
        key: Columns of a `jdbc` target by which rows are replaced (PostgreSQL).
        packages: Maven coordinates of packages that the format needs, as a JDBC driver.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: The connection.
    """

    template_fields: Sequence[str] = ("config", "topic", "target", "options", "name", "master", "riverrun_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        target: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        options: Mapping[str, str] | None = None,
        schema: str | None = None,
        is_binary: bool = False,
        name: str = "",
        key: Sequence[str] = (),
        packages: Sequence[str] = (),
        master: str = "",
        apart: bool | None = None,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.topic = topic
        self.target = target
        self.format = format
        self.options = dict(options or {})
        self.schema = schema
        self.is_binary = is_binary
        self.name = name
        self.key = tuple(key)
        self.packages = tuple(packages)
        self.master = master
        self.apart = apart

    def execute(self, context: Context) -> str:
        """Export, and return the range of offsets as text; empty if nothing was new."""
        return acting(lambda: transferred(self, context, self._wish()))

    def driven(self, context: Context, event: dict[str, Any]) -> str:
        """Return the range of offsets that a driver has exported."""
        return concluded(self, context, event, lambda note: note.found)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt writes the same batch again."""
        end_at_once()

    def _wish(self) -> TransferWish:
        from riverrun.transfers.export_spec import ExportSpec

        spec = ExportSpec(
            topic=self.topic,
            target=self.target,
            format=self.format,
            options=options_of(self.options),
            schema=self.schema,
            is_binary=self.is_binary,
            name=self.name,
            key=self.key,
        )
        return TransferWish("export", asdict(spec), self.packages, self.master)


def transferred(task: ImportOperator | ExportOperator, context: Context, wish: TransferWish) -> str:
    """Import or export, and return what other tasks are told; or submit the work."""
    location = located(task.config, task.riverrun_conn_id)
    project = location.project()
    if is_apart(task, project):
        submit(task, context, location, wish)
    done = transfer(project, wish, logged_progress(task.log))
    task.log.info("%s", done.said)
    return done.found


def options_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a format, with `${NAME}` replaced from the environment."""
    return {name: expanded(f"option {name}", value, os.environ) for name, value in options.items()}
