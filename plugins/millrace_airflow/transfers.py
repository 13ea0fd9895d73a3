"""Operators that import and export (`millrace import`, `millrace export`). No engine loads before a task runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from millrace_airflow.acting import acting, end_at_once
from millrace_airflow.hooks import CONNECTION, located
from millrace_airflow.operators import documented
from millrace_airflow.sessions import front_door
from pipeline.config.secrets import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

_REPORT_SECONDS = 10.0


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
        incremental: A column that only rises.
        name: Name of the import; by default, the topic.
        parts: Number of parts of a batch, each one transaction.
        packages: Maven coordinates of packages that the format needs, as a JDBC driver.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        config: Path of `streams.toml`; by default, as the connection says.
        millrace_conn_id: The connection.
    """

    template_fields: Sequence[str] = ("config", "source", "topic", "options", "name", "master", "millrace_conn_id")

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
        packages: Sequence[str] = (),
        master: str = "",
        config: str = "",
        millrace_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.config = config
        self.millrace_conn_id = millrace_conn_id
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
        self.packages = tuple(packages)
        self.master = master

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Import, and return the number of records as text."""
        return acting(self._run)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt aborts open transactions."""
        end_at_once()

    def _run(self) -> str:
        from pipeline.transfers.imports import ImportSpec

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
        )
        project = front_door(located(self.config, self.millrace_conn_id).project(), self.master)
        summary = project.run_import(spec, packages=self.packages, on_progress=logged_progress(self.log))
        read, written = summary.read, summary.written
        self.log.info("%d rows read, %d records written to %s", read, written, self.topic)
        return str(summary.written)


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
        config: Path of `streams.toml`; by default, as the connection says.
        millrace_conn_id: The connection.
    """

    template_fields: Sequence[str] = ("config", "topic", "target", "options", "name", "master", "millrace_conn_id")

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
        config: str = "",
        millrace_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**documented(self, kwargs))
        self.config = config
        self.millrace_conn_id = millrace_conn_id
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

    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow's signature
        """Export, and return the range of offsets as text; empty if nothing was new."""
        return acting(self._run)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt writes the same batch again."""
        end_at_once()

    def _run(self) -> str:
        from pipeline.transfers.exports import ExportSpec

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
        project = front_door(located(self.config, self.millrace_conn_id).project(), self.master)
        summary = project.run_export(spec, packages=self.packages, on_progress=logged_progress(self.log))
        if summary.batch is None:
            self.log.info("nothing is new")
            return ""
        self.log.info("%d records read, %d rows written: %s", summary.read, summary.written, summary.batch.range)
        return summary.batch.range


def options_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a format, with `${NAME}` replaced from the environment."""
    return {name: expanded(f"option {name}", value, os.environ) for name, value in options.items()}


def logged_progress(log: Any) -> Callable[[int, int], None]:
    """Return a function that logs the progress of a transfer, with its rate and remaining time, at most every ten seconds."""
    began = said = time.monotonic()

    def report(done: int, everything: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < _REPORT_SECONDS:
            return
        said, rate = now, done / (now - began)
        remaining = f"{max(everything - done, 0) / rate:.0f} s" if rate else "an unknown time"
        log.info("%d of %d records, %.0f/s, %s remaining", done, everything, rate, remaining)

    return report
