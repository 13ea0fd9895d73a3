"""Archives topics before their records are deleted (`riverrun archive write`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from riverrun.errors import ConfigError
from riverrun_airflow.acting import acting, end_at_once
from riverrun_airflow.assets import TopicLineage, lineage_of
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import returning_fields
from riverrun_airflow.results import unless_empty
from riverrun_airflow.sessions import archive, archive_declared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class ArchiveOperator(BaseOperator):
    """Archives the new records of topics, exactly once. A retry continues an interrupted attempt.

    Args:
        name: An archive that the project declares in `[archives.NAME]`; empty with `app` or `topics`.
        app: The application whose inputs are archived, at its `archive.url`; empty with `name` or `topics`.
        topics: The topics, if they are not those of an application.
        url: Place of the archive: a path, or a URL of fsspec. Default: the application's `archive.url`.
        engine: `local` for the task's process, `spark` for executors. Default: the archive's, else `local`.
        skip_lost: Whether to skip records that were deleted before they were archived; otherwise such a task fails.
        skip_if_empty: Whether the task is skipped if nothing is new, and the tasks after it with it.
        config: Path of `streams.toml`; by default, as the connection says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "name", "app", "topics", "url", "engine", "riverrun_conn_id")
    get_openlineage_facets_on_complete = lineage_of

    def __init__(
        self,
        *,
        name: str = "",
        app: str = "",
        topics: Sequence[str] = (),
        url: str = "",
        engine: str = "",
        skip_lost: bool = False,
        skip_if_empty: bool = False,
        config: str = "",
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**returning_fields(self, kwargs))
        self.name = name
        self.app = app
        self.topics = list(topics)
        self.url = url
        self.engine = engine
        self.skip_lost = skip_lost
        self.skip_if_empty = skip_if_empty
        self.config = config
        self.riverrun_conn_id = riverrun_conn_id
        self.lineage = TopicLineage()

    def execute(self, context: Context) -> dict[str, Any]:
        """Archive, and return the result: `offsets` and `records_in` by topic, `bytes`, `url`, `empty`."""
        result = acting(self._archived)
        return unless_empty(context, result, skip=self.skip_if_empty)

    def on_kill(self) -> None:
        """End the task: what no manifest lists is not part of the archive."""
        end_at_once()

    def _archived(self) -> dict[str, Any]:
        project = located(self.config, self.riverrun_conn_id).project()
        if self.name:
            self._require_no_other()
            found = archive_declared(project, self.name, self.engine, may_skip=self.skip_lost)
        else:
            found = archive(project, self.app, tuple(self.topics), self.url, self.engine, may_skip=self.skip_lost)
        self.lineage = TopicLineage(project.kafka["bootstrap.servers"], tuple(found.records), (), {"url": found.url})
        for topic, count in found.records.items():
            self.log.info("%s: %d records archived at %s", topic, count, found.url)
        return {
            "url": found.url,
            "offsets": found.offsets,
            "records_in": found.records,
            "bytes": found.size,
            "empty": not any(found.offsets.values()),
        }

    def _require_no_other(self) -> None:
        """Refuse what the declaration of an archive says already."""
        if self.app or self.topics or self.url:
            message = f"Archive {self.name} has its topics and its URL from streams.toml"
            raise ConfigError(message, hint="Leave out app, topics and url, or name.")
