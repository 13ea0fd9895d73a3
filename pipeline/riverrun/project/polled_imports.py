"""Imports that poll a source: opens source and topic of `[imports.NAME]`, again for each version whose serdes they use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.extras import require_extra
from riverrun.project.following import LiveSerdes, follow_declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.config import ProjectConfig
    from riverrun.config.imports import ImportConfig
    from riverrun.project.cluster import ProjectCluster
    from riverrun.transfers.batches import Batch
    from riverrun.transfers.follower import Follower, FollowReport
    from riverrun.transfers.import_progress import Position
    from riverrun.transfers.import_rows import RowForm


@dataclass(frozen=True, slots=True)
class ImportStatus:
    """The state of an import, as the topic of imports has it.

    Args:
        batches: Number of commits, and of batches by Spark.
        source: The source that was read; empty before the first commit.
        upto: The value of the incremental column of the last row, as text; None for files, and before the first row.
        files: Number of files that were taken.
        file: The file that was taken in part; empty for none.
        rows: The number of its rows that were taken.
    """

    batches: int
    source: str
    upto: str | None
    files: int
    file: str = ""
    rows: int = 0

    @classmethod
    def of(cls, last: Batch, position: Position) -> ImportStatus:
        """Return the state after a batch."""
        place = position.place
        found = cls(last.number, last.terms.source, position.upto, len(position.files))
        return found if place is None else replace(found, file=place.file, rows=place.rows)


@dataclass(frozen=True, slots=True)
class FollowedImport:
    """An import of a project that polls a source.

    Args:
        cluster: Brokers, to which it writes.
        project: The project that declares it.
        name: Its name, as in `[imports.NAME]`.
    """

    cluster: ProjectCluster
    project: ProjectConfig
    name: str

    @property
    def config(self) -> ImportConfig:
        """The import's configuration."""
        found: ImportConfig = self.project.declared("imports", self.name)
        return found

    def follow(
        self,
        *,
        until_caught_up: bool = False,
        ends: Callable[[], bool] = lambda: False,
        on_report: Callable[[FollowReport], None] = lambda _report: None,
        report_seconds: float = 10.0,
    ) -> FollowReport:
        """Keep the topic up to date with the source, exactly once, until a stop is requested.

        Arguments and the returned report are as those of `FollowedExport.follow`.

        Raises:
            ConfigError: If the source cannot be read: a table or a column is gone, has nulls, or has only lower values.
            EngineError: If the source, or brokers, do not answer for too long.
            SerializationError: If a row cannot become a record.
            TaskMigratedError: If another process has taken over the import.
            RangeError: If the topic was recreated.
            TopicError: If the topic does not exist.
            BrokerError: If the brokers refuse.
        """
        from riverrun.transfers.follower import FollowOptions

        require_extra("sinks")
        options = FollowOptions(until_caught_up, ends, on_report, report_seconds)
        return follow_declared("import", self.config, options, self._opened)

    def status(self) -> ImportStatus:
        """Return how far the import has come.

        Raises:
            RangeError: If its progress cannot be read.
            BrokerError: If the brokers do not answer.
        """
        from riverrun.transfers.import_progress import ImportProgress

        return ImportStatus.of(*ImportProgress(self.cluster.admin, self.name).position())

    @contextmanager
    def _opened(self) -> Iterator[tuple[Follower, Callable[[], bool]]]:
        """Yield a follower, and the function that returns whether another version is live, or the topic has changed."""
        from riverrun.transfers.batches import Terms
        from riverrun.transfers.follower import Follower, FollowSettings
        from riverrun.transfers.import_progress import TopicTarget
        from riverrun.transfers.polled_feed import PolledFeed
        from riverrun.transfers.polled_files import PolledFiles
        from riverrun.transfers.polled_table import PolledTable

        config, live = self.config, LiveSerdes(self.cluster, self.project, self.config)
        version = live.version()
        form = _form(config, live, version)
        source = PolledFiles(config) if config.format else PolledTable(config, form.columns)
        incremental = ", ".join(config.incremental) or None
        terms = Terms(config.place, config.format or "jdbc", None, config.key, config.value or None, incremental)
        letters = config.errors_dead_letter_queue_topic_name
        topic = TopicTarget(self.cluster.admin, config.name, config.topic, terms, source, dead_letters=letters)
        continues = config.deserialization_exception_handler == "continue"
        feed = PolledFeed(config.name, source, topic, form, poll_seconds=config.poll_seconds, continues=continues)
        settings = FollowSettings(
            commit_records=config.commit_records, commit_bytes=config.commit_bytes, retry_seconds=config.retry_seconds
        )
        yield Follower(feed, settings), lambda: live.has_left(version) or topic.has_changed()


def _form(config: ImportConfig, live: LiveSerdes, version: str) -> RowForm:
    """Return how rows become records, by the serdes of a version of the application."""
    from riverrun.transfers.import_rows import RowForm

    key_serde, value_serde = live.serdes(version)
    return RowForm(
        key=config.key,
        value=config.value or None,
        timestamp=config.timestamp or None,
        missing_timestamp=config.missing_timestamp,
        not_a_number=config.not_a_number,
        key_serde=key_serde,
        value_serde=value_serde,
    )
