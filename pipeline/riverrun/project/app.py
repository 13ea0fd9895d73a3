"""`App`: one application on its cluster, with all operations on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.project.checks import AppChecks
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.live import LiveOptions, asked, new_deployment, new_sole_worker, new_worker, status_of
from riverrun.project.runs import AppRuns
from riverrun.project.state import AppState
from riverrun.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from riverrun.cluster.deployment import Deployment
    from riverrun.cluster.instance import InstanceReport
    from riverrun.config import AppConfig, ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.inputs import InputLag
    from riverrun.hosting.skipping import Skip
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.live import AppStatus
    from riverrun.project.release import AppRelease
    from riverrun.project.worker import AppWorker
    from riverrun.records import TopicPartition
    from riverrun.runtime.recorded_answers import Answers
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.topics.letters import DeadLetters
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import WorkerState, WorkerSummary
    from riverrun.worker.worker import Worker

FORMATS = ("text", "mermaid", "svg", "html")
"""Forms of a topology's description."""


class App:
    """An application, in one version or in the live one.

    It caches no answers of brokers: each call asks again, so after a release another version may answer. A call that needs
    the brokers raises `BrokerError` if these do not answer, or refuse.

    Args:
        cluster: Brokers and Spark.
        project: The project that declares it.
        name: Its name, as in `[apps.NAME]`.
        version: Its version; None for the live one at each call.
    """

    def __init__(self, cluster: ProjectCluster, project: ProjectConfig, name: str, version: str | None) -> None:
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

    @property
    def runs(self) -> AppRuns:
        """Its bounded runs."""
        return AppRuns(self._chosen)

    @property
    def state(self) -> AppState:
        """Its state stores, snapshots and directories."""
        return AppState(self._chosen)

    @property
    def checks(self) -> AppChecks:
        """Checks of its published records, by its expectations."""
        return AppChecks(self._chosen)

    def letters(self, topic: str | None = None) -> DeadLetters:
        """Return its dead letters: list them, replay them to where they come from, or discard them.

        Args:
            topic: Their topic. Default: `errors.dead.letter.queue.topic.name`.

        Raises:
            ConfigError: If no topic is given, and the setting has none.
        """
        from riverrun.topics.letters import DeadLetters

        chosen = topic or self.config.streams.errors_dead_letter_queue_topic_name
        if chosen is None:
            message = f"{self.name} has no dead letter topic"
            raise ConfigError(message, hint="Set errors.dead.letter.queue.topic.name, or name the topic: --topic.")
        versions = {self.config.version, *self.config.versions}
        ids = frozenset(self.config.application_id(version) for version in versions)

        def reader() -> tuple[str, Topology]:
            application = self.loaded()
            return application.id, application.topology

        return DeadLetters(self.cluster.admin, chosen, self.cluster.by or "", ids=ids, reader=reader)

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

    def run(
        self,
        start: str | RunRange = "committed",
        to: str = "latest",
        *,
        progress: bool = False,
        advance_stream_time_to: str | None = None,
        engine: str | None = None,
    ) -> RunSummary:
        """Process a bounded range of offsets, exactly once. Work that is done already is not repeated.

        Args:
            start: As in `AppRuns.bounded`.
            to: As in `AppRuns.bounded`.
            progress: Whether to show a bar, in a terminal or a notebook.
            advance_stream_time_to: As in `AppRuns.bounded`.
            engine: As in `AppRuns.bounded`.

        Returns:
            The work done.

        Raises:
            StreamsError: As in `BoundedRun.run`.
        """
        chosen = self.runs.bounded(start, to, advance_stream_time_to=advance_stream_time_to, engine=engine)
        return chosen.run(progress=progress)

    def dry_run(
        self, start: str | RunRange = "committed", to: str = "latest", *, answers: Answers | None = None
    ) -> dict[str, Any]:
        """Process a bounded range without committing anything.

        Args:
            start: As in `AppRuns.bounded`.
            to: As in `AppRuns.bounded`.
            answers: Recorded answers of look-ups, or the file that has them, instead of calls.

        Returns:
            By public topic, a DataFrame of the records it would get (`riverrun.spark.dry_run.dry_run`).

        Raises:
            StreamsError: As in `BoundedRun.dry_run`.
        """
        return self.runs.bounded(start, to).dry_run(answers=answers)

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
        from riverrun.hosting.inputs import input_lags

        return input_lags(self._chosen.connected())

    def expiry_warning(self) -> str | None:
        """Return a warning if brokers have deleted its committed offsets, or will; None if nothing is to be lost."""
        from riverrun.hosting.continuing import expiry_warning

        return expiry_warning(self._chosen.cluster.admin, self._chosen.config, self._chosen.version)

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

    def plan_skip(self, tp: TopicPartition, offset: int, number: int = 0) -> Skip:
        """Return how one input record would be skipped, without doing it.

        Args:
            tp: Partition of the record.
            offset: Offset of the record: the next one that its task would process.
            number: Number of the record, from 1, if many records of a repartition topic share the offset. A run writes such
                packs, and the error says so.

        Raises:
            RangeError: If it is not the next record of its task.
            UnderWayError: If an instance or a run has the task.
        """
        from riverrun.hosting.skipping import plan_skip

        application = self.loaded()
        self.require_no_switch(application)
        return plan_skip(self._chosen.on_brokers(application), tp, offset, number)

    def skip(self, planned: Skip) -> Skip:
        """Skip a record; it goes to the dead letter topic, if the application has one.

        Args:
            planned: The record, from `plan_skip`.

        Returns:
            The skipped record.

        Raises:
            UnderWayError: If an instance or a run has taken the task.
        """
        from riverrun.hosting.skipping import carry_out

        return carry_out(self._chosen.connected(), planned)

    def release(self, to: str | None = None) -> AppRelease:
        """Return the release of a new version, or the current release.

        Args:
            to: The version to release; defaults to that of the current release.
        """
        from riverrun.project.release import AppRelease

        return AppRelease(self.cluster, self.project, self.name, to)

    def scale(self, threads: int, server: str | None = None) -> Mapping[str, Any]:
        """Set the number of stream threads of an instance while it runs.

        Args:
            threads: Number of stream threads, at least 1 and at most one per task.
            server: `host:port` of the instance. Default: `application.server`.

        Returns:
            The answer of the instance.

        Raises:
            StreamsError: If it does not answer, or refuses.
        """
        found: Mapping[str, Any] = self.ask("POST", "/scale", server=server, threads=threads)
        return found


def described(application: Application, form: str) -> str:
    """Return the topology in a format.

    Args:
        application: The application with its topology.
        form: One of `FORMATS`.

    Raises:
        ConfigError: If there is no such format.
    """
    topology = application.topology
    match form:
        case "text":
            return topology.describe()
        case "mermaid":
            return topology.mermaid()
        case "svg":
            return topology.svg()
        case "html":
            return topology.html(f"{application.config.name} {application.version}")
    message = f"a topology cannot be described as {form!r}"
    raise ConfigError(message, hint=f"Formats are {', '.join(FORMATS)}.")


def generated_code(application: Application) -> str:
    """Return the code that tasks generate for each sub-topology, and the nodes that it calls, with reasons."""
    from riverrun.runtime.compile import sub_topology_code

    parts = []
    for sub in application.topology.sub_topologies():
        spec = application.task_spec(TaskId(sub.id, 0), ())
        parts.append(str(sub_topology_code(spec.sub_topology, spec.handlers, spec.timestamp_extractor)))
    return "\n".join(parts)
