"""Follows what a file declares, and opens the parts again for each version whose serdes they use; here, those of exports."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.config import StreamsConfig
from riverrun.config.address import ServerAddress
from riverrun.errors import BrokerError, ConfigError
from riverrun.extras import require_extra
from riverrun.hosting.inputs import InputLag
from riverrun.project.chosen_version import ChosenVersion
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from riverrun.config import ProjectConfig
    from riverrun.config.archives import ArchiveConfig
    from riverrun.config.exports import ExportConfig
    from riverrun.config.imports import ImportConfig
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.consumer import RecordConsumer
    from riverrun.kafka.shares import PartitionShare
    from riverrun.processor.handlers import ProducerRecord
    from riverrun.processor.sinks import Sink, SinkTable
    from riverrun.project.cluster import ProjectCluster
    from riverrun.serde.api import Serde
    from riverrun.transfers.follower import Follower, FollowOptions, FollowReport
    from riverrun.transfers.missed_deletions import MissedDeletions
    from riverrun.transfers.sink_rows import SinkRows
    from riverrun.transfers.unreadable import ReadableRows


@contextmanager
def reporting(
    kind: str, config: ExportConfig | ImportConfig | ArchiveConfig, on_report: Callable[[FollowReport], None]
) -> Iterator[Callable[[FollowReport], None]]:
    """Serve a follower's metrics to Prometheus, if it has an address for them; yields the function that takes reports."""
    if not config.metrics_server:
        yield on_report
        return
    require_extra("http")
    from riverrun.service.follower_metrics import FollowerMetrics, serving

    figures = FollowerMetrics(kind, config.name)
    with serving(figures, ServerAddress.parse(config.metrics_server), config.metrics_token):

        def take(report: FollowReport) -> None:
            figures.take(report)
            on_report(report)

        yield take


def follow_declared(
    kind: str,
    config: ExportConfig | ImportConfig | ArchiveConfig,
    options: FollowOptions,
    opened: Callable[[], AbstractContextManager[tuple[Follower, Callable[[], bool]]]],
) -> FollowReport:
    """Follow until a stop is requested; each time a follower is outdated, `opened` opens another one."""
    with reporting(kind, config, options.on_report) as take:
        while True:
            with opened() as (follower, is_outdated):
                if not follower.follow(replace(options, on_report=take), is_outdated):
                    return follower.report()


@contextmanager
def share_and_reader(
    admin: Admin, group: str, topics: Sequence[str], config: ExportConfig | ArchiveConfig
) -> Iterator[tuple[PartitionShare, RecordConsumer]]:
    """Join a group, and yield this process's share of topics with the consumer that reads it."""
    from riverrun.kafka.consumer import RecordConsumer
    from riverrun.kafka.shares import PartitionShare

    consumer = {"client.id": f"riverrun-{config.name}", **config.consumer}
    with (
        closing(PartitionShare(admin.kafka, group, topics, consumer)) as share,
        closing(RecordConsumer(admin.kafka, config.consumer)) as reader,
    ):
        yield share, reader


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """The state of an export, as brokers know it: targets have the valid offsets, of which the group has a copy.

    Args:
        group: Its consumer group.
        state: The group's state, in Kafka's words.
        members: The followers, as `client-id@host`.
        partitions: The partitions of the topic.
    """

    group: str
    state: str
    members: tuple[str, ...]
    partitions: tuple[InputLag, ...]


@dataclass(frozen=True, slots=True)
class LiveSerdes:
    """The serdes of an export or an import: named ones, or those of the live version of its application."""

    cluster: ProjectCluster
    project: ProjectConfig
    config: ExportConfig | ImportConfig

    def version(self) -> str:
        """Return the live version of the application; empty without one."""
        app = self.config.app
        return ChosenVersion(self.cluster, self.project, app).version if app else ""

    def has_left(self, version: str) -> bool:
        """Return whether another version is live, whose serdes may differ; False while brokers do not answer."""
        try:
            return self.version() != version
        except BrokerError as error:
            if not error.retriable:
                raise
            # Serdes of the last known version will do until brokers answer: a follower must not end because of them.
            return False

    def serdes(self, version: str, window: str = "") -> tuple[Serde[Any] | None, Serde[Any] | None]:
        """Return the serdes of keys and values by a version of the application; None for one that nothing names.

        Args:
            version: The version; empty without an application.
            window: Size of the windows of windowed keys, where the application does not define it.
        """
        from riverrun.topics.serdes import serde_named, serdes_of

        config, size = self.config, window or None
        key: Serde[Any] | None = None
        value: Serde[Any] | None = None
        if config.app:
            loaded = ChosenVersion(self.cluster, self.project, config.app, version).loaded()
            key, value = serdes_of(loaded.topology, config.topic, size)
        return (
            serde_named(config.key_serde, size) if config.key_serde else key,
            serde_named(config.value_serde, size) if config.value_serde else value,
        )


@dataclass(frozen=True, slots=True)
class FollowedExport:
    """An export of a project that is followed.

    Args:
        cluster: Brokers, from which it reads.
        project: The project that declares it.
        name: Its name, as in `[exports.NAME]`.
    """

    cluster: ProjectCluster
    project: ProjectConfig
    name: str

    @property
    def config(self) -> ExportConfig:
        """The export's configuration."""
        found: ExportConfig = self.project.declared("exports", self.name)
        return found

    @property
    def group(self) -> str:
        """The consumer group whose members share the partitions."""
        return f"riverrun-export-{self.name}"

    def follow(
        self,
        *,
        until_caught_up: bool = False,
        ends: Callable[[], bool] = lambda: False,
        on_report: Callable[[FollowReport], None] = lambda _report: None,
        report_seconds: float = 10.0,
    ) -> FollowReport:
        """Keep the target up to date, exactly once, until a stop is requested.

        Args:
            until_caught_up: Whether to stop at the present end of the topic: a batch, which resumes where the last one stopped.
            ends: Returns whether a stop is requested; asked about ten times per second.
            on_report: Called repeatedly with the progress.
            report_seconds: Time between two reports.

        Returns:
            The last report.

        Raises:
            ConfigError: If the target or the columns cannot be used, or the target refuses a record.
            EngineError: If the target does not answer for too long.
            DeserializationError: If a record cannot be read.
            TopicError: If the topic does not exist.
            BrokerError: If the brokers, or a schema registry, refuse, or do not answer: in a batch for `retry_seconds`.
            MissingOffsetError: If retention has deleted records before they were exported.
        """
        from riverrun.transfers.follower import FollowOptions

        config = self.config
        require_extra("sinks")
        letters = config.errors_dead_letter_queue_topic_name
        self.cluster.admin.require_all(
            {
                f"Topics that export {self.name} follows": [config.topic],
                f"Topics that export {self.name} keeps dead letters in": [letters] if letters else [],
            }
        )
        options = FollowOptions(until_caught_up, ends, on_report, report_seconds)
        return follow_declared("export", config, options, partial(self._opened, self._ends_of_batches()))

    def status(self) -> ExportStatus:
        """Return the followers of the export, and their lag.

        Raises:
            TopicError: If the topic does not exist.
            BrokerError: If the brokers do not answer.
        """
        admin, topic = self.cluster.admin, self.config.topic
        admin.require([topic], f"export {self.name} follows")
        tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic])[topic])]
        state, progress = admin.group(self.group), admin.progress_of(self.group)
        try:
            committed = {tp: offset for tp, (offset, _) in progress.committed(tps).items()}
        finally:
            progress.close()
        starts, ends = admin.beginning_offsets(tps), admin.end_offsets(tps)
        lags = tuple(InputLag(tp, False, committed.get(tp), starts[tp], ends[tp]) for tp in tps)  # noqa: FBT003 - a tuple
        return ExportStatus(self.group, state.state, state.members, lags)

    @contextmanager
    def _opened(self, batches: Mapping[TopicPartition, int]) -> Iterator[tuple[Follower, Callable[[], bool]]]:
        """Yield a follower, and the function that returns whether another version is live; `batches` have these ends."""
        from riverrun.transfers.follower import Follower, FollowSettings
        from riverrun.transfers.topic_feed import TopicFeed

        config, live = self.config, LiveSerdes(self.cluster, self.project, self.config)
        version = live.version()
        rows = self._rows(live, version)
        sink = self._sink(rows)
        settings = FollowSettings(
            config.commit_seconds, config.commit_records, config.commit_bytes, config.retry_seconds
        )
        with (
            share_and_reader(self.cluster.admin, self.group, [config.topic], config) as (share, reader),
            self._readable(rows) as readable,
        ):
            feed = TopicFeed(share, reader, sink, readable, partial(self._starts, batches), self._deletions(sink))
            yield Follower(feed, settings), partial(live.has_left, version)

    def _rows(self, live: LiveSerdes, version: str) -> SinkRows:
        """Return the rows of the topic, by the serdes of a version of the application."""
        from riverrun.serde.serdes import JSON, STRING
        from riverrun.transfers.sink_rows import SinkRows

        config, (key, value) = self.config, live.serdes(version, self.config.window)
        return SinkRows.of(
            key or STRING, value or JSON, config.columns, config.key, keeps_absent=config.absent_fields == "keep"
        )

    @contextmanager
    def _readable(self, rows: SinkRows) -> Iterator[ReadableRows]:
        """Yield what makes rows of the records that can be read, and writes dead letters about the others."""
        from riverrun.kafka.producer import IdempotentProducer
        from riverrun.processor.handlers import error_handlers
        from riverrun.transfers.unreadable import ReadableRows

        handler = error_handlers(
            StreamsConfig(
                deserialization_exception_handler=self.config.deserialization_exception_handler,
                errors_dead_letter_queue_topic_name=self.config.errors_dead_letter_queue_topic_name or None,
            )
        ).deserialization
        with ExitStack() as stack:
            producers: list[IdempotentProducer] = []

            def write(letters: Sequence[ProducerRecord]) -> None:
                # Most followers never meet an unreadable record: they need no producer.
                if not producers:
                    producer = IdempotentProducer(self.cluster.admin.kafka, admin=self.cluster.admin)
                    producers.append(stack.enter_context(closing(producer)))
                for letter in letters:
                    key, value, partition = letter.key, letter.value, letter.partition
                    producers[0].send(letter.topic, key, value, letter.timestamp, letter.headers, partition)
                # Before the offsets after these records are committed, or a letter could be lost.
                producers[0].flush()

            yield ReadableRows(self.name, rows.batch, handler, write)

    def _sink(self, rows: SinkRows) -> Sink:
        from riverrun.processor.sinks import SinkTable

        config, admin = self.config, self.cluster.admin
        table = SinkTable(
            export=self.name,
            topic=config.topic,
            topic_id=admin.topic_ids([config.topic])[config.topic],
            schema=rows.schema,
            key=rows.key_names,
            is_upsert=config.mode == "upsert",
            may_add_columns=config.new_columns == "add",
        )
        return _opened(config, table)

    def _deletions(self, sink: Sink) -> MissedDeletions:
        """Return what decides about deletions that retention has removed from the topic before they were exported."""
        from riverrun.processor.sinks import RemovesRows
        from riverrun.transfers.missed_deletions import REFUSE, REMOVE, MissedDeletions

        config = self.config
        can_remove = config.mode == "upsert" and isinstance(sink, RemovesRows)
        if config.lost_deletions == REMOVE and not can_remove:
            message = f"Export {self.name} has lost_deletions = {REMOVE!r}, but its sink has no method remove"
            raise ConfigError(message, hint="It is described at riverrun.processor.sinks.RemovesRows.")
        return MissedDeletions(
            self.cluster.admin,
            self.group,
            config.topic,
            target=f"The target of export {self.name}",
            lost_deletions=config.lost_deletions or (REMOVE if can_remove else REFUSE),
            hint=(
                'Begin again with an empty target and another name. With lost_deletions = "ignore" it continues, and such rows'
                ' stay; with "remove", which needs mode = "upsert", they go.'
            ),
        )

    def _ends_of_batches(self) -> Mapping[TopicPartition, int]:
        """Return where the batch export ended that this one continues; empty if it continues none."""
        from riverrun.transfers.exports import ends_of_batches, has_batches

        config, admin = self.config, self.cluster.admin
        if config.continues:
            return ends_of_batches(admin, config.continues, config.topic)
        # Spark keeps its offsets elsewhere: under the same name, this export would write everything a second time.
        if has_batches(admin, self.name):
            message = f"Export {self.name} has batches that Spark has written, whose offsets are in a topic of Kafka's"
            hint = f'continues = "{self.name}" begins after the last one. Otherwise, choose another name.'
            raise ConfigError(message, hint=hint)
        return {}

    def _starts(
        self, batches: Mapping[TopicPartition, int], tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where partitions start for which the target has no offset."""
        firsts = self.cluster.admin.beginning_offsets(tps)
        return {tp: batches.get(tp, firsts[tp]) for tp in tps}


def _opened(config: ExportConfig, table: SinkTable) -> Sink:
    if config.catalog:
        require_extra("iceberg")
        from riverrun.transfers.iceberg_sink import IcebergSink

        return IcebergSink(table, config.catalog, config.table, config.partition_by)
    if config.table:
        from riverrun.transfers.sql_sink import SqlSink

        return SqlSink(table, config.target, config.table)
    if config.format:
        from riverrun.transfers.file_sink import FileSink
        from riverrun.transfers.partitioned_files import PartitionedFiles

        if config.partition_by:
            return PartitionedFiles(table, config.target, config.format, config.partition_by)
        return FileSink(table, config.target, config.format)
    from riverrun.config.code import call_attribute

    sink: Sink = call_attribute(config.sink, table, config.target)
    missing = [name for name in ("begin", "write", "commit") if not callable(getattr(sink, name, None))]
    if missing:
        message = f"{config.sink} returned {type(sink).__name__}, which has no {missing[0]}"
        raise ConfigError(message, hint="A sink has the three methods of riverrun.processor.sinks.Sink.")
    return sink
