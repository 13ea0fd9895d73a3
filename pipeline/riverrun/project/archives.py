"""The archive of a project's topics, for programs: write, inspect, compact and clean it."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from riverrun.archive.archiving import archive_topic, in_this_process, on_spark
from riverrun.archive.manifest import ArchiveStore, nothing_of
from riverrun.archive.upkeep import compact, compact_by_key, drop_before, leftovers, sweep, verify
from riverrun.errors import ArchiveError, EngineError, StreamsError
from riverrun.extras import require_extra
from riverrun.hosting.process import SystemClock
from riverrun.hosting.progress import report_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.archive.archiving import Archived
    from riverrun.archive.manifest import ArchivedFile, TopicManifest
    from riverrun.archive.upkeep import Damage, Leftover
    from riverrun.config.archives import ArchiveConfig
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.riverrun import Riverrun
    from riverrun.transfers.archive_tables import ArchiveTable
    from riverrun.transfers.follower import Follower, FollowReport

log = logging.getLogger(__name__)

_PIECES_PER_CORE = 4
# A follower completes its files after so many records, however small they are.
_MOST_RECORDS = 10_000_000
LEFTOVER_HOURS = 24
"""Default age from which a file that no manifest lists is taken for one of a dead archiver, hours."""
SMALL_FILE = 32 * 2**20
"""Default size below which `compact` joins a file with its neighbours, bytes."""


def archive(project: Riverrun, name: str) -> DeclaredArchive:
    """Return an archive that the file declares in `[archives.NAME]`.

    Args:
        project: Has the brokers, the Spark session and the file.
        name: Name of the archive, as in `[archives.NAME]`.

    Raises:
        ConfigError: If there is no such archive, or its declaration has an error.
    """
    return DeclaredArchive(project.cluster, project.config.declared("archives", name))


@dataclass(frozen=True, slots=True)
class DeclaredArchive:
    """An archive that the file declares in `[archives.NAME]`.

    Args:
        cluster: Brokers and Spark.
        config: What it declares.
    """

    cluster: ProjectCluster
    config: ArchiveConfig

    def write(self, *, engine: str | None = None, may_skip: bool = False) -> list[Archived]:
        """Archive what its topics have had since they were archived last, as `Archives.write` does.

        Args:
            engine: `local` or `spark`; None for the declared one.
            may_skip: Whether to skip lost records, even if that is not declared.

        Raises:
            StreamsError: As in `Archives.write`.
        """
        config = self.config
        archives = Archives(self.cluster, config.url, [config])
        return archives.write(config.topics, engine=engine or config.engine, may_skip=may_skip or config.skip_lost)

    @property
    def group(self) -> str:
        """The consumer group whose members share the partitions of a followed archive."""
        return f"riverrun-archive-{self.config.name}"

    def follow(
        self,
        *,
        until_caught_up: bool = False,
        may_skip: bool = False,
        ends: Callable[[], bool] = lambda: False,
        on_report: Callable[[FollowReport], None] = lambda _report: None,
        report_seconds: float = 10.0,
    ) -> FollowReport:
        """Archive what comes, exactly once, until a stop is requested. Several processes share the partitions.

        `may_skip` is as in `write`; other arguments and the returned report are as those of `FollowedExport.follow`.

        Raises:
            ArchiveError: If a topic was created again, or records are lost.
            ConfigError: If a catalogue of Iceberg refuses, or a table there shows something else.
            EngineError: If the archive does not answer for too long.
            TopicError: If a topic does not exist.
            BrokerError: If the brokers, or a schema registry, refuse, or do not answer: in a batch for `retry_seconds`.
        """
        from riverrun.project.following import follow_declared
        from riverrun.transfers.follower import FollowOptions

        self.cluster.admin.require(list(self.config.topics), f"archive {self.config.name} follows")
        options = FollowOptions(until_caught_up, ends, on_report, report_seconds)
        return follow_declared("archive", self.config, options, partial(self._opened, may_skip=may_skip))

    @contextmanager
    def _opened(self, *, may_skip: bool) -> Iterator[tuple[Follower, Callable[[], bool]]]:
        """Yield a follower, and the function that returns whether it is outdated, which it never is."""
        from riverrun.archive.sink import ArchiveSink, RawBatches
        from riverrun.project.following import share_and_reader
        from riverrun.transfers.follower import Follower, FollowSettings
        from riverrun.transfers.topic_feed import TopicFeed

        config, admin = self.config, self.cluster.admin
        store = ArchiveStore(config.url, self.cluster.by or "")
        for table in _tables(store, [config], *config.topics):
            # A follower must not fail because a catalogue is down: its first files try again.
            with suppress(ArchiveError, EngineError):
                table.show()
        sink = ArchiveSink(
            store,
            admin,
            may_skip=may_skip or config.skip_lost,
            on_listed=partial(_try_to_show, store, [config]),
        )
        settings = FollowSettings(config.commit_seconds, _MOST_RECORDS, config.commit_bytes, config.retry_seconds)
        with share_and_reader(admin, self.group, config.topics, config) as (share, reader):
            feed = TopicFeed(share, reader, sink, RawBatches(), admin.log_starts, sink)
            yield Follower(feed, settings), lambda: False


class Archives:
    """The archive at a URL.

    Args:
        cluster: Brokers and Spark.
        url: Place of the archive: any URL of fsspec, or a path.
        declared: Archives of the project. Tables of Iceberg that show this one are kept up to date.
    """

    def __init__(self, cluster: ProjectCluster, url: str, declared: Iterable[ArchiveConfig] = ()) -> None:
        """Open the file store.

        Raises:
            ArchiveError: If it cannot be reached.
            MissingExtraError: If fsspec is not installed.
        """
        self._cluster = cluster
        self._store = ArchiveStore(url, cluster.by or "")
        self._declared = tuple(declared)
        self.url = url

    def write(
        self,
        topics: Iterable[str],
        *,
        engine: str = "local",
        may_skip: bool = False,
    ) -> list[Archived]:
        """Archive what topics have had since they were archived last, up to their last stable offsets.

        Args:
            topics: Names of the topics; each one is archived once.
            engine: `local` for this process, `spark` for executors.
            may_skip: Whether to skip records that are in neither topic nor archive any more.

        Raises:
            ArchiveError: If a topic was created again, another archiver is running, records are lost, or the archive refuses.
            TopicError: If a topic does not exist.
            ConfigError: If a catalogue of Iceberg refuses, or a table there shows something else. The records are archived.
            EngineError: If a catalogue does not answer. The records are archived, and the next call mends the table.
            BrokerError: If brokers do not answer.
        """
        chosen = list(dict.fromkeys(topics))
        # Before the work, as this fails if a package is not installed.
        _tables(self._store, self._declared, *chosen)
        write, at_once = in_this_process(self.url, self._cluster.admin), 1
        if engine == "spark":
            from riverrun.spark.tasks.work import admin_here

            spark = self._cluster.sessions.session()
            write = on_spark(self.url, self._cluster.kafka, spark, admin_here)
            # Several pieces per core keep all cores busy to the end, as pieces take different times.
            at_once = _PIECES_PER_CORE * max(1, spark.sparkContext.defaultParallelism)
        done = [
            archive_topic(
                self._store,
                self._cluster.admin,
                topic,
                write,
                at_once=at_once,
                may_skip=may_skip,
                on_offsets=partial(report_progress, f"archive {topic}"),
            )
            for topic in chosen
        ]
        for each in done:
            self.show(each.manifest.topic)
        return done

    def show(self, topic: str) -> None:
        """Bring the tables of Iceberg that show a topic of the archive up to date. All changes of this class do.

        Args:
            topic: Name of the archived topic.

        Raises:
            ConfigError: If a catalogue refuses, or a table shows something else.
            ArchiveError: If the archive cannot be read.
            EngineError: If a catalogue does not answer.
        """
        for table in _tables(self._store, self._declared, topic):
            table.show()

    def topics(self) -> list[TopicManifest]:
        """Return what there is of each topic, by name.

        Raises:
            ArchiveError: If the archive cannot be read.
        """
        found = [self._store.manifest(name) for name in self._store.topics()]
        return [each for each in found if each is not None and each.topic_id]

    def unlisted(self) -> list[str]:
        """Return the names of topics that have files and no manifest, by name: their first archivers died, or are running.

        Raises:
            ArchiveError: If the archive cannot be read.
        """
        return self._store.unlisted()

    def topic(self, name: str) -> TopicManifest:
        """Return what there is of a topic.

        Raises:
            ArchiveError: If there is nothing, or it cannot be read.
        """
        found = self._store.manifest(name)
        if found is None or not found.topic_id:
            known = ", ".join(each for each in self._store.topics() if each != name) or "nothing"
            hint = f"It has {known}."
            if self._store.data(name):
                hint = f"{hint} Files of {name} that no manifest lists: riverrun archive verify {name}"
            message = f"The archive at {self.url} has no records of topic {name}"
            raise ArchiveError(message, hint=hint)
        return found

    def _with_leftovers(self, name: str) -> TopicManifest:
        """Return what there is of a topic, even if its archivers have left files only."""
        # Read before the files, which an archiver may list meanwhile: they would look like leftovers.
        found = self._store.manifest(name) or nothing_of(name)
        return found if found.number or self._store.data(name) else self.topic(name)

    def verify(self, name: str, on_file: Callable[[ArchivedFile], None] = lambda _file: None) -> Iterator[Damage]:
        """Yield the files of a topic that are missing or damaged.

        Args:
            name: The topic.
            on_file: Called after each file.

        Raises:
            ArchiveError: If there is nothing of the topic.
        """
        return verify(self._store, self._with_leftovers(name), on_file)

    def leftovers(self, name: str) -> list[Leftover]:
        """Return the data files of a topic that no manifest lists: those of killed archivers, and of running ones.

        Args:
            name: The topic.

        Raises:
            ArchiveError: If there is nothing of the topic, or the archive cannot be read.
        """
        return leftovers(self._store, self._with_leftovers(name))

    def drop_leftovers(self, name: str, hours: float = LEFTOVER_HOURS) -> list[Leftover]:
        """Remove the data files of a topic that no manifest lists, and return what is gone.

        No archiver can list them afterwards, however long it was paused: it is refused, or begins again.

        Args:
            name: The topic.
            hours: Age that a file must have; younger ones may be those of running archivers.

        Raises:
            ArchiveError: If there is nothing of the topic, another archiver is running, or the archive refuses.
        """
        before_ms = SystemClock().now_ms() - round(hours * 3_600_000)
        return sweep(self._store, self._with_leftovers(name), before_ms)[1]

    def compact(self, name: str, below: int = SMALL_FILE) -> TopicManifest:
        """Join small files of a topic that follow each other. Replaced files stay until the next compaction.

        Args:
            name: The topic.
            below: Size of a small file, bytes.

        Raises:
            ArchiveError: If a file is damaged, another archiver is running, or the archive refuses.
        """
        found = compact(self._store, self.topic(name), below=below)
        self.show(name)
        return found

    def compact_by_key(self, name: str) -> TopicManifest:
        """Drop records that a later one with their key has superseded. Replaced files stay for one more compaction.

        Args:
            name: The topic.

        Raises:
            ArchiveError: If brokers do not compact the topic, so that each record counts. Or if a file is damaged, another
                archiver is running, or the archive refuses.
            TopicError: If the topic does not exist.
            BrokerError: If brokers do not answer.
        """
        manifest, admin = self.topic(name), self._cluster.admin
        admin.require([name], "are compacted by key")
        policy = admin.topic_config(name).get("cleanup.policy", "")
        if "compact" not in policy:
            message = f"Each record of {name} counts: its cleanup.policy is {policy}"
            hint = "Only archives of topics that brokers compact, with cleanup.policy=compact, are compacted by key."
            raise ArchiveError(message, hint=hint)
        found = compact_by_key(self._store, manifest)
        self.show(name)
        return found

    def drop(self, name: str, before_ms: int | None = None) -> list[ArchivedFile]:
        """Drop a topic, or the oldest files of it, and return what is gone.

        Args:
            name: The topic.
            before_ms: Time before which all records of a file must lie, ms since the epoch; None for the whole topic.

        Raises:
            ArchiveError: If there is nothing of the topic, another archiver is running, or the archive refuses.
        """
        manifest = self.topic(name)
        if before_ms is None:
            self._store.forget(name)
            gone = list(manifest.files)
        else:
            gone = drop_before(self._store, manifest, before_ms)[1]
        self.show(name)
        return gone


def _tables(store: ArchiveStore, declared: Iterable[ArchiveConfig], *topics: str) -> list[ArchiveTable]:
    """Return the tables that show topics of an archive."""
    found = [
        (each, topic)
        for each in declared
        for topic in topics
        if each.catalog and each.url == store.url and topic in each.topics
    ]
    if not found:
        return []
    require_extra("iceberg")
    from riverrun.transfers.archive_tables import ArchiveTable

    return [ArchiveTable(store, topic, each.catalog, each.namespace) for each, topic in found]


def _try_to_show(store: ArchiveStore, declared: Iterable[ArchiveConfig], topic: str) -> None:
    """Bring tables up to date, if that is possible now."""
    try:
        for table in _tables(store, declared, topic):
            table.show()
    except StreamsError as error:
        # A follower resumes without: the next change of the archive mends the table.
        log.warning("a table of Iceberg lacks what was archived of %s: %s", topic, error)
