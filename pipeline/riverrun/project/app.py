"""`App`: one application on its cluster, with all operations on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.project.bounded import MAX_RECORDS_PER_SLICE, BoundedRun
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.description import described, generated_code
from riverrun.project.live import LiveOptions, asked, new_deployment, new_sole_worker, new_worker
from riverrun.project.operations import (
    bounded_run,
    check_published,
    checks_of,
    delete_local_state,
    lag_of,
    local_state,
    planned_reset,
    planned_skip,
    publish_state,
    runs_of,
    skip_record,
    start_over,
    status_of,
    store_frame,
    write_store_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from riverrun.cluster.deployment import Deployment
    from riverrun.cluster.instance import InstanceReport
    from riverrun.config import AppConfig, ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.inputs import InputLag
    from riverrun.hosting.skipping import Skip
    from riverrun.project.cluster import Cluster
    from riverrun.project.operations import AppStatus
    from riverrun.project.release import AppRelease
    from riverrun.project.worker import AppWorker
    from riverrun.records import TopicPartition
    from riverrun.releases.live_quality import CheckRecord, LiveVerdict
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord
    from riverrun.state.snapshots import Manifest
    from riverrun.topology.topology import Topology
    from riverrun.worker.reset import Reset
    from riverrun.worker.states import WorkerState, WorkerSummary
    from riverrun.worker.worker import Worker


class App:
    """An application, in one version or in the live one.

    It caches no answers of brokers: each call asks again, so after a release another version may answer. A call that needs
    the brokers raises `BrokerError` if these do not answer, or refuse.

    Args:
        cluster: Brokers and Spark.
        project: The project that declares it.
        name: Its name.
        version: Its version; None for the live one.
    """

    def __init__(self, cluster: Cluster, project: ProjectConfig, name: str, version: str | None) -> None:
        self.project = project
        self.name = name
        self.cluster = cluster
        self._chosen = ChosenVersion(cluster, project, name, version)

    @property
    def config(self) -> AppConfig:
        """The application's configuration."""
        return self._chosen.config

    @property
    def version(self) -> str:
        """The chosen version, or the live one.

        Raises:
            ReleaseError: If the control topic has lost the application.
        """
        return self._chosen.version

    @property
    def application_id(self) -> str:
        """`<name>-<version>`: its consumer group, and the prefix of its internal topics. Brokers know the live version."""
        return self._chosen.application_id

    def topology(self) -> Topology:
        """Return its topology; with a chosen version no broker is asked.

        Raises:
            ConfigError: If its function cannot be imported, or raises.
            TopologyError: If it does not return a topology.
        """
        return self.loaded().topology

    def describe(self, format: str = "text") -> str:  # noqa: A002 - the command's word
        """Return its topology as text or drawn, as `riverrun describe --format` does.

        Args:
            format: `text`, as Kafka Streams describes it; `mermaid`, `svg`, or `html`, a page with all of it.

        Raises:
            ConfigError: If there is no such format.
        """
        return described(self.loaded(), format)

    def code(self) -> str:
        """Return the code that its tasks generate, and the nodes that it calls, with reasons (`riverrun describe --code`)."""
        return generated_code(self.loaded())

    def loaded(self) -> Application:
        """Return the application with its topology, for inspection."""
        return self._chosen.loaded()

    def processing(self) -> Application:
        """Return the application for processing. A version that is not live writes to staging topics.

        Raises:
            ReleaseError: If the version cannot be staged; if the control topic has lost the application.
            TopicError: If a public topic does not exist.
        """
        return self._chosen.processing()

    def require_no_switch(self, application: Application) -> None:
        """Check that the loaded version may process: no switch of versions is under way, or has happened since.

        Raises:
            UnderWayError: If one is, or has.
        """
        self._chosen.require_no_switch(application)

    # Live

    def worker(
        self,
        *,
        threads: int | None = None,
        state_dir: str | Path | None = None,
        server: str | None = None,
        token: str | None = None,
    ) -> AppWorker:
        """Return an instance of the application for this process (`KafkaStreams`). It runs once you start it.

        Args:
            threads: Number of stream threads, each a process. Default: `num.stream.threads`.
            state_dir: Directory of local state. Default: `state.dir`. Each instance on a machine needs its own.
            server: `host:port` of its HTTP interface. Default: `application.server`.
            token: Token that callers must show. Default: `server.token`.

        Raises:
            ConfigError: If an argument is impossible.
            UnderWayError: If a switch of versions is under way.
        """
        return new_worker(self._chosen, LiveOptions(state_dir, threads, server), token)

    def sole_worker(
        self,
        *,
        state_dir: str | Path | None = None,
        on_state: Callable[[WorkerState], None] = lambda _state: None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> Worker:
        """Return a worker that runs all tasks in this process and thread, outside the group; `run` starts it.

        In the middle of a switch of versions, this waits for its end.

        Args:
            state_dir: Directory of local state. Default: `state.dir`.
            on_state: Called with every change of state.
            on_restore: Called with the changelog, the records restored and the records expected.
        """
        return new_sole_worker(self._chosen, LiveOptions(state_dir), on_state, on_restore)

    def catch_up(self, *, state_dir: str | Path | None = None) -> WorkerSummary:
        """Process all existing records in this process, and return when all inputs have been read to their ends.

        Args:
            state_dir: Directory of local state. Default: `state.dir`.

        Returns:
            The work done.

        Raises:
            UnderWayError: If another worker, or a run, of the application is active.
            RecordError: If a record cannot be handled.
        """
        return self.sole_worker(state_dir=state_dir).run(until_caught_up=True)

    def deployment(
        self,
        instances: int = 1,
        *,
        threads: int | None = None,
        state_dir: str | Path | None = None,
        server: str | None = None,
        on_report: Callable[[InstanceReport], None] = lambda _report: None,
    ) -> Deployment:
        """Return instances of the application on a Spark cluster; `run` starts them.

        Args:
            instances: Number of instances; each takes a core.
            threads: Number of stream threads per instance.
            state_dir: Directory of local state on the cluster's machines.
            server: `host:port` of their HTTP interface.
            on_report: Called with the reports of instances.
        """
        return new_deployment(self._chosen, LiveOptions(state_dir, threads, server), instances, on_report)

    # Bounded

    def bounded(
        self,
        start: str | RunRange = "committed",
        to: str = "latest",
        *,
        advance_stream_time_to: str | None = None,
        wall_clock_punctuation: str | None = None,
        max_records_per_slice: int = MAX_RECORDS_PER_SLICE,
    ) -> BoundedRun:
        """Return a bounded run. This determines its range, and does nothing else yet.

        Args:
            start: `committed`, `earliest`, a vector (`topic-0@12,topic-1@7`) or a time; or a whole range.
            to: `latest`, a vector or a time; ignored if `start` is a whole range.
            advance_stream_time_to: Time to which event time advances after the last record. Windows that end before it close.
            wall_clock_punctuation: `refuse`, `once` or `never`. Default: the setting.
            max_records_per_slice: Each slice is one transaction per task: larger slices are fewer, and need more memory.

        Raises:
            RangeError: If it is not a range of the application's inputs.
            TopicError: If a topic is missing.
        """
        return bounded_run(
            self._chosen,
            start,
            to,
            advance_stream_time_to=advance_stream_time_to,
            wall_clock_punctuation=wall_clock_punctuation,
            max_records_per_slice=max_records_per_slice,
        )

    def run(
        self,
        start: str | RunRange = "committed",
        to: str = "latest",
        *,
        progress: bool = False,
        advance_stream_time_to: str | None = None,
    ) -> RunSummary:
        """Process a bounded range of offsets on Spark, exactly once. Work that is done already is not repeated.

        Args:
            start: As in `bounded`.
            to: As in `bounded`.
            progress: Whether to show a bar, in a terminal or a notebook.
            advance_stream_time_to: As in `bounded`.

        Returns:
            The work done.

        Raises:
            StreamsError: As in `BoundedRun.run`.
        """
        return self.bounded(start, to, advance_stream_time_to=advance_stream_time_to).run(progress=progress)

    def dry_run(self, start: str | RunRange = "committed", to: str = "latest") -> dict[str, Any]:
        """Process a bounded range without committing anything.

        Args:
            start: As in `bounded`.
            to: As in `bounded`.

        Returns:
            By public topic, a DataFrame of the records it would get (`riverrun.spark.dry_run.dry_run`).

        Raises:
            StreamsError: As in `BoundedRun.dry_run`.
        """
        return self.bounded(start, to).dry_run()

    def runs(self, limit: int | None = None) -> list[RunRecord]:
        """Return its bounded runs, of all versions, latest first.

        Args:
            limit: Maximum number; all by default.
        """
        return runs_of(self._chosen, limit)

    # What there is

    def status(self, server: str | None = None) -> AppStatus:
        """Return the places where it runs.

        Args:
            server: `host:port` of an instance with details. Default: `application.server`. Without either, or if no instance
                runs, none is asked.
        """
        return status_of(self._chosen, server)

    def lag(self) -> list[InputLag]:
        """Return its lag per partition of its inputs and of its repartition topics.

        Raises:
            TopicError: If a source topic does not exist.
        """
        return lag_of(self._chosen)

    def frame(self, store: str, at: str = "latest") -> Any:
        """Return a state store as a DataFrame of Spark (`riverrun.spark.stores.read_store`).

        Args:
            store: Its name.
            at: `latest`, an offset vector of the inputs, or the id of a run.

        Raises:
            InvalidStateStoreError: If there is no such store, or it has no changelog.
            RangeError: If the state at that point cannot be had any more.
        """
        return store_frame(self._chosen, store, at)

    def export_store(
        self,
        store: str,
        target: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        *,
        at: str = "latest",
        options: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
    ) -> int:
        """Write all rows of a state store to a target, and replace its content.

        Args:
            store: The store's name.
            target: A directory, or the table of a `jdbc` target.
            format: `parquet`, `csv`, `json`, `jdbc` or any other that Spark knows.
            at: As in `frame`.
            options: The format's options.
            packages: Maven coordinates of libraries that the format needs.

        Returns:
            The number of rows.

        Raises:
            ConfigError: If the format does not exist.
            StreamsError: As in `frame`.
        """
        return write_store_to(self._chosen, store, target, format, at=at, options=options, packages=packages)

    def ask(
        self, method: str, path: str, *, server: str | None = None, body: Mapping[str, Any] | None = None, **params: Any
    ) -> Any:
        """Send a request to an instance over HTTP.

        Args:
            method: `GET` or `POST`.
            path: Such as `/stores/NAME/KEY`.
            server: `host:port` of an instance. Default: `application.server`.
            body: Body of the request, as JSON.
            params: Parameters of the query string.

        Returns:
            The answer, as parsed JSON.

        Raises:
            ConfigError: If no address is known.
            StreamsError: If the instance does not answer, or refuses.
        """
        return asked(self._chosen, method, path, server=server, params=params, body=body)

    @property
    def token(self) -> str:
        """The token that callers of its instances show; empty for none.

        Raises:
            ConfigError: If a header cannot hold it.
        """
        return self._chosen.token

    # What operators do to it

    def snapshot(self) -> list[Manifest]:
        """Publish the current state of all tasks to `snapshot.url`, without disturbing running workers.

        Returns:
            The manifest of each snapshot.
        """
        return publish_state(self._chosen)

    def plan_reset(self, start: str = "earliest") -> Reset:
        """Return the actions of a reset, without doing them.

        Args:
            start: New start of the inputs: `earliest`, `latest`, a vector or a time.

        Raises:
            RangeError: If it is not a point of the inputs.
        """
        return planned_reset(self._chosen, start)

    def reset(self, plan: Reset) -> None:
        """Start over: delete all results and state of the application.

        Args:
            plan: The actions, from `plan_reset`.

        Raises:
            StreamsError: If workers or a run are active.
        """
        start_over(self._chosen, plan)

    def local_state(self, state_dir: Path | None = None) -> list[Path]:
        """Return the directories of its state on this machine.

        Args:
            state_dir: Directory of all applications' state. Default: `state.dir`.
        """
        return local_state(self._chosen, state_dir)

    def clean_up(self, state_dir: Path | None = None) -> list[Path]:
        """Delete its state on this machine; workers restore theirs (`KafkaStreams.cleanUp`).

        Args:
            state_dir: As in `local_state`.

        Returns:
            The deleted directories.
        """
        return delete_local_state(self._chosen, state_dir)

    def plan_skip(self, tp: TopicPartition, offset: int) -> Skip:
        """Return how one input record would be skipped, without doing it.

        Args:
            tp: Partition of the record.
            offset: Its offset.

        Raises:
            RangeError: If it is not the next record of its task.
            UnderWayError: If an instance or a run has the task.
        """
        return planned_skip(self._chosen, tp, offset)

    def skip(self, planned: Skip) -> Skip:
        """Skip a record; it goes to the dead letter topic, if the application has one.

        Args:
            planned: The record, from `plan_skip`.

        Returns:
            The skipped record.

        Raises:
            UnderWayError: If an instance or a run has taken the task.
        """
        return skip_record(self._chosen, planned)

    def check(self, since: str = "") -> LiveVerdict:
        """Judge what the live version has published, and the work of its instances, by its expectations, and note the findings.

        Args:
            since: `last`, for records that are new since the last check; a vector of the public topics, or a time. Empty for
                everything there is: then tables are judged by their rows.

        Raises:
            ConfigError: If the expectations cannot be had, or are of an output or a store that there is not.
            RangeError: If `since` is not a point of the public topics.
            DeserializationError: If a record cannot be read.
        """
        return check_published(self._chosen, since)

    def checks(self, limit: int | None = None) -> list[CheckRecord]:
        """Return the history of checks, latest first.

        Args:
            limit: Maximum number; all by default.
        """
        return checks_of(self._chosen, limit)

    def release(self, to: str | None = None) -> AppRelease:
        """Return the release of a new version, or the current release.

        Args:
            to: The version to release; by default the one of the current release.
        """
        from riverrun.project.release import AppRelease

        return AppRelease(self.cluster, self.project, self.name, to)

    def scale(self, threads: int, server: str | None = None) -> Mapping[str, Any]:
        """Set the number of stream threads of an instance while it runs.

        Args:
            threads: The number.
            server: `host:port` of the instance. Default: `application.server`.

        Returns:
            The answer of the instance.

        Raises:
            StreamsError: If it does not answer, or refuses.
        """
        found: Mapping[str, Any] = self.ask("POST", "/scale", server=server, threads=threads)
        return found
