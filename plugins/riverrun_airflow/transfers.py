"""Operators that import and export (`riverrun import`, `riverrun export`). No engine loads before a task runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from riverrun.config.secrets import expanded
from riverrun.decoders import converter
from riverrun.transfers.specs import ExportSpec, ImportSpec
from riverrun_airflow.acting import acting, end_at_once
from riverrun_airflow.arguments import given
from riverrun_airflow.assets import (
    TopicLineage,
    announce,
    is_template,
    lineage_of,
    target_asset,
    topic_asset,
    transferred_by,
)
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import SparkLink, logged, returning_fields
from riverrun_airflow.progress import following
from riverrun_airflow.results import unless_empty
from riverrun_airflow.sessions import transfer
from riverrun_airflow.submission import concluded, is_apart, note_of, submit
from riverrun_airflow.work_requests import ExportRequest, ImportRequest, TransferRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow.sdk import Asset, Context

    from riverrun.config import ProjectConfig
    from riverrun_airflow.drivers import Note


Spec = TypeVar("Spec", ImportSpec, ExportSpec)
# Key of a task's state: what it has transferred, and is in no event yet.
_RANGES = "ranges"


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
        skip_if_empty: Whether the task is skipped if nothing is new, and the tasks after it with it.
        config: Path of `streams.toml`; by default, as the connection says.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "source", "topic", "options", "name", "master", "riverrun_conn_id")
    operator_extra_links = (SparkLink(),)
    get_openlineage_facets_on_complete = lineage_of

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
        skip_if_empty: bool = False,
        config: str = "",
        master: str = "",
        apart: bool | None = None,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        self.own_outlets = kwargs.get("outlets")
        if self.own_outlets is None and not is_template(name or topic):
            kwargs["outlets"] = [transferred_by("import", name or topic)]
        super().__init__(**returning_fields(self, kwargs))
        self.lineage, self.spark_page = TopicLineage(), ""
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
        self.skip_if_empty = skip_if_empty
        self.config = config
        self.master = master
        self.apart = apart
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Import, and return the result (`result_of`)."""
        result = acting(lambda: transferred(self, context, self._request()))
        return unless_empty(context, result, skip=self.skip_if_empty)

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a driver's import."""
        return unless_empty(context, transferred_apart(self, context, event), skip=self.skip_if_empty)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt aborts open transactions."""
        end_at_once()

    def _request(self) -> TransferRequest:
        return ImportRequest(spec_of(self, ImportSpec), self.packages, self.master)

    def told(self, project: ProjectConfig) -> Told:
        """Return the assets of the source and of the topic, and the facts about the import."""
        brokers, name = project.kafka["bootstrap.servers"], self.name or self.topic
        source = target_asset(self.source, self.format, options_of(self.options))
        return Told("import", name, source, topic_asset(brokers, self.topic), self.topic)


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
        app: Name of an application that reads or writes the topic: its serdes make the columns.
        version: Its version; by default, the live one.
        partition_by: Levels of directories within a batch: columns, and `year`, `month`, `day` or `hour` of a time in UTC, such
            as `day(_timestamp)`.
        packages: Maven coordinates of packages that the format needs, as a JDBC driver.
        skip_if_empty: Whether the task is skipped if nothing is new, and the tasks after it with it.
        config: Path of `streams.toml`; by default, as the connection says.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "topic", "target", "options", "name", "master", "riverrun_conn_id")
    operator_extra_links = (SparkLink(),)
    get_openlineage_facets_on_complete = lineage_of

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
        app: str = "",
        version: str | None = None,
        partition_by: Sequence[str] = (),
        packages: Sequence[str] = (),
        skip_if_empty: bool = False,
        config: str = "",
        master: str = "",
        apart: bool | None = None,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        self.own_outlets = kwargs.get("outlets")
        if self.own_outlets is None and not is_template(name or topic):
            kwargs["outlets"] = [transferred_by("export", name or topic)]
        super().__init__(**returning_fields(self, kwargs))
        self.lineage, self.spark_page = TopicLineage(), ""
        self.topic = topic
        self.target = target
        self.format = format
        self.options = dict(options or {})
        self.schema = schema
        self.is_binary = is_binary
        self.name = name
        self.key = tuple(key)
        self.app = app
        self.version = version
        self.partition_by = tuple(partition_by)
        self.packages = tuple(packages)
        self.skip_if_empty = skip_if_empty
        self.config = config
        self.master = master
        self.apart = apart
        self.riverrun_conn_id = riverrun_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Export, and return the result (`result_of`)."""
        result = acting(lambda: transferred(self, context, self._request()))
        return unless_empty(context, result, skip=self.skip_if_empty)

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a driver's export."""
        return unless_empty(context, transferred_apart(self, context, event), skip=self.skip_if_empty)

    def on_kill(self) -> None:
        """End the task, and Spark with its process: the next attempt writes the same batch again."""
        end_at_once()

    def _request(self) -> TransferRequest:
        return ExportRequest(spec_of(self, ExportSpec), self.packages, self.master)

    def told(self, project: ProjectConfig) -> Told:
        """Return the assets of the topic and of the target, and the facts about the export."""
        brokers, name = project.kafka["bootstrap.servers"], self.name or self.topic
        target = target_asset(self.target, self.format, options_of(self.options))
        return Told("export", name, topic_asset(brokers, self.topic), target, self.topic)


@dataclass(frozen=True, slots=True)
class Told:
    """A transfer as readers of its topic or target see it: its kind (`import` or `export`), name, assets and topic."""

    kind: str
    name: str
    read: Asset
    written: Asset
    topic: str

    @property
    def facts(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "topic": self.topic}


def spec_of(task: ImportOperator | ExportOperator, kind: type[Spec]) -> Spec:
    """Return the specification whose fields are a task's attributes. Fail if one has another type, before work begins."""
    mistake = f"Arguments of task {task.task_id} do not fit"
    for name, value in task.options.items():
        if not isinstance(value, str):
            raise AirflowFailException(f"{mistake}: option {name} is of type {type(value).__name__}; write it as text")
    # A driver reads the specification as JSON, and would fail in a process without the task's log.
    try:
        found = {**given(task, kind), "name": task.name or "", "options": options_of(task.options)}
        return converter(kind)(found)
    except msgspec.ValidationError as error:
        raise AirflowFailException(f"{mistake}: {error}") from None


def transferred(task: ImportOperator | ExportOperator, context: Context, request: TransferRequest) -> dict[str, Any]:
    """Import or export, and return the result for other tasks; or submit the work."""
    location = located(task.config, task.riverrun_conn_id)
    project = location.project()
    if is_apart(task, project):
        submit(task, context, location, request)
    with following(logged(task, context)):
        done = transfer(project, request, lambda text: keep(context, [text]))
    task.log.info("%s", done.said)
    return tell(task, context, project, done.found)


def transferred_apart(task: ImportOperator | ExportOperator, context: Context, event: dict[str, Any]) -> dict[str, Any]:
    """Return a driver's result, and report its transfers; if it has failed, the next attempt reports them."""
    keep(context, note_of(event).ranges)

    def conclude(note: Note) -> dict[str, Any]:
        return tell(task, context, located(task.config, task.riverrun_conn_id).project(), note.found)

    return concluded(task, context, event, conclude)


def keep(context: Context, ranges: Iterable[str]) -> None:
    """Keep what was transferred until an attempt succeeds."""
    store: Any = context["task_state_store"]
    kept = store.get(_RANGES) or []
    # Airflow drops the asset events of a task that fails: the attempt that succeeds makes them for all.
    store.set(_RANGES, list(dict.fromkeys([*kept, *ranges])))


def tell(
    task: ImportOperator | ExportOperator, context: Context, project: ProjectConfig, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Report to OpenLineage, make an event for each finished batch that has none yet, and return the result of the task."""
    store: Any = context["task_state_store"]
    kept = store.get(_RANGES) or []
    try:
        told = task.told(project)
    # Airflow refuses some URIs as assets. What was transferred stays, just without an event.
    except ValueError as error:
        task.log.warning("No asset event: Airflow has no asset for this place: %s", error)
        return result_of(task.name or task.topic, "", kept, counts)
    result = result_of(told.name, told.written.uri, kept, counts)
    facts = {**told.facts, "range": ",".join(kept)}
    task.lineage = TopicLineage(
        facet=facts, brokers=project.kafka["bootstrap.servers"], uris=(told.read.uri, told.written.uri)
    )
    events = [(told.written, {**told.facts, "offsets": each, "result": result}) for each in kept]
    announce(task, context, transferred_by(told.kind, told.name), [told.read], events)
    store.set(_RANGES, [])
    return result


def result_of(name: str, written: str, ranges: Sequence[str], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the result of an import or an export.

    >>> result_of("clicks", "file:///srv/out", ["clicks-0@5..9"], {"read": 4, "written": 4})["records_out"]
    {'file:///srv/out': 4}

    Args:
        name: Name of the import or export; the topic if it has no other.
        written: URI of the topic or target that it writes; empty if Airflow has none for the place.
        ranges: Offsets of each batch that the task has finished, as text.
        counts: Records that its last attempt has `read` and `written`.

    Returns:
        `name`, `offsets` (of each finished batch, of all attempts), `empty` (whether nothing was new), `records_in` and
        `records_out` (by URI) of the last attempt.
    """
    read, done = counts.get("read", 0), counts.get("written", 0)
    return {
        "name": name,
        "offsets": list(ranges),
        "empty": not ranges and not read,
        "records_in": read,
        "records_out": {written: done} if done else {},
    }


def options_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a format, with `${NAME}` replaced from the environment."""
    return {name: expanded(f"option {name}", value, os.environ) for name, value in options.items()}
