"""`Riverrun`: a project, its brokers and its Spark."""

from __future__ import annotations

import inspect
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from riverrun.config import ProjectConfig
from riverrun.config.addons import BUILT_IN, loaded_part, others, parts, refuse_taken
from riverrun.config.code import load_attribute, look_beside
from riverrun.errors import ConfigError, StreamsError
from riverrun.kafka.door import Kafka, LibraryClients
from riverrun.project.app import App
from riverrun.project.cluster import ProjectCluster, SparkSessions
from riverrun.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Unpack

    from riverrun.dsl.builder import StreamsBuilder
    from riverrun.hosting.application import Application
    from riverrun.kafka.clients import Clients
    from riverrun.project import archives, transfers
    from riverrun.project.environment import Environment
    from riverrun.project.environment_records import EnvironmentRecord
    from riverrun.project.graph import ProjectGraph
    from riverrun.project.impact import Impact
    from riverrun.project.joint_release import JointRelease
    from riverrun.project.restatement import Restatement

    Built = Callable[[StreamsBuilder], Topology] | Topology | str
    """A topology, a function that builds it, or that function's name."""

F = TypeVar("F", bound="Callable[..., Any]")

_FILE = "streams.toml"


class AppDeclaration(TypedDict, total=False):
    """The settings of a declared application besides its topology.

    Args:
        quality: A function that returns expectations, its name, or the path of suites in JSON.
        gate: Whether the outputs of bounded runs are judged by these expectations before they are public.
        data_docs: Directory that gets Data Docs of gates and checks. Defaults to none.
        unexpected_rows: Directory or URL of fsspec that gets rows that do not meet an expectation. Defaults to none.
        unexpected_rows_limit: Number of rows that are kept of each expectation, at most. Default: 1,000.
        unexpected_rows_checks: Number of gates and checks whose rows are kept: the newest ones. Default: 100.
        versions: Further versions to release, with their topologies.
        outputs: Kinds by topic, `table` or `log`, where the kind derived from the topology is wrong.
        carry: For releases that carry state, by version: what becomes of stores and outputs, by name. Of a store, `same`,
            `empty`, or a function of key and value that returns the value that the version keeps; of an output, `same`.
        config: Settings, by Kafka Streams' own names.
    """

    quality: Callable[[], Any] | str | None
    gate: bool
    data_docs: str | None
    unexpected_rows: str | None
    unexpected_rows_limit: int | None
    unexpected_rows_checks: int | None
    versions: Mapping[str, Built] | None
    outputs: Mapping[str, str] | None
    carry: Mapping[str, Mapping[str, Callable[[Any, Any], Any] | str]] | None
    config: Mapping[str, Any] | None


def _naming(kind: Any) -> Callable[[F], F]:
    """Let a method's signature name the keys of a TypedDict that it takes, for notebooks and `help`."""

    def named(method: F) -> F:
        signature = inspect.signature(method)
        keys = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in kind.__annotations__]
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        method.__signature__ = signature.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        return method

    return named


@dataclass(frozen=True, slots=True)
class ReadyTopology:
    """A topology in the place of a function that builds it."""

    topology: Topology

    def __call__(self, _builder: StreamsBuilder) -> Topology:
        """Return the topology. Its builder has optimized it, or not."""
        return self.topology


class Riverrun:
    """A project: applications on a Kafka cluster, and the Spark of their bounded runs.

    Connections are opened on demand. Several threads may use one project.

    Args:
        config: Path of `streams.toml`, or a project that was read already. Defaults to `streams.toml` in the working directory.
        kafka: Client properties, for a project without a file.
        schema_registry: Settings as in `[schema_registry]`, for a project without a file.
        spark: Settings of Spark, which override those of the file; or a session, which is used as it is.
        master: Spark's master URL, which overrides both.
        environ: The environment variables. Defaults to those of this process.
        directory: Directory of a project without a file, to which its paths are relative. Defaults to the working directory.
        by: The user in the history of releases and runs; None for this user on this machine.
        on_wait: Called once with the brokers, if they take longer than a moment to answer.
        clients: Makes the clients of Kafka. Defaults to those of confluent-kafka; `riverrun.simulation` has others.

    Raises:
        ConfigError: If the file cannot be read, has an error, or arguments cannot be combined.
    """

    def __init__(
        self,
        config: str | Path | ProjectConfig | None = None,
        *,
        kafka: Mapping[str, str] | None = None,
        schema_registry: Mapping[str, Any] | None = None,
        spark: Any = None,
        master: str | None = None,
        environ: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
        by: str | None = None,
        on_wait: Callable[[str], None] = lambda _servers: None,
        clients: Clients | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._config = self._read(config, kafka, schema_registry, directory)
        self._declared: frozenset[str] = frozenset(self._config.apps)
        sessions = SparkSessions(self._config.spark, spark, master, self._environ)
        self._cluster = ProjectCluster(
            Kafka(self._config.kafka, clients or LibraryClients()), sessions, self._environ, by, on_wait
        )

    def _read(
        self,
        config: str | Path | ProjectConfig | None,
        kafka: Mapping[str, str] | None,
        schema_registry: Mapping[str, Any] | None,
        directory: str | Path | None,
    ) -> ProjectConfig:
        if schema_registry is not None and kafka is None:
            message = "schema_registry cannot be combined with a file"
            raise ConfigError(message, hint="Write it into the file's [schema_registry], or pass kafka as well.")
        if isinstance(config, ProjectConfig):
            return config
        if kafka is None:
            path = Path(config or _FILE)
            look_beside(path)
            return ProjectConfig.load(path, self._environ)
        if config is not None:
            message = "A project has either a file or client properties"
            raise ConfigError(message, hint="Leave out config or kafka.")
        content = {"kafka": kafka, "schema_registry": schema_registry or {}}
        return ProjectConfig.read(Path(directory or Path.cwd()) / "Riverrun(kafka=...)", content, self._environ)

    @property
    def config(self) -> ProjectConfig:
        """The settings of the project."""
        return self._config

    @property
    def cluster(self) -> ProjectCluster:
        """The brokers and the Spark of its applications."""
        return self._cluster

    @property
    def spark_sessions(self) -> SparkSessions:
        """The source of its Spark sessions."""
        return self._cluster.sessions

    @property
    def apps(self) -> tuple[str, ...]:
        """The names of its applications."""
        return (*self._config.apps, *self._config.refused)

    @_naming(AppDeclaration)
    def app(
        self,
        name: str,
        topology: Built | None = None,
        *,
        version: str | None = None,
        **declaration: Unpack[AppDeclaration],
    ) -> App:
        """Return an application of the project, or declare one by its topology, as `[apps.NAME]` does in a file.

        Another call with a topology changes the declaration. Functions that other processes cannot import, such as
        those of a notebook, travel with their code. Their bytecode identifies them, so another version of Python counts
        as a change. A built `Topology` travels with the functions that it calls.

        Args:
            name: Name of the application, as in `[apps.NAME]`; it begins the names of internal topics.
            topology: A `Topology`; or a function of a `StreamsBuilder`, or its name: `module:function`. None for an
                application that the file declares, or an earlier call.
            version: Without a topology, the version to work with; None for the version that is live at each call. With
                one, the version that goes live first. Default: `v1`.
            declaration: The rest of the declaration, by the names of `AppDeclaration`.

        Raises:
            ConfigError: If there is no such application or version; if an argument is unknown or impossible, needs a
                topology, or the file declares an application with this name.
        """
        for key in declaration.keys() - AppDeclaration.__annotations__.keys():
            raise TypeError(f"app() got an unexpected keyword argument {key!r}")
        if topology is None:
            return self._existing(name, version, [key for key, value in declaration.items() if value])
        if name in self._declared:
            message = f"{self._config.path} declares application {name!r}"
            raise ConfigError(message, hint="Choose another name, or leave the topology out to use that application.")
        table: dict[str, Any] = {key: value for key, value in declaration.items() if value is not None}
        table |= {"topology": _callable(topology), "version": version}
        table["versions"] = {key: _callable(built) for key, built in table.get("versions", {}).items()}
        self._config = self._config.with_app(name, table, self._environ)
        return App(self._cluster, self._config, name, None)

    def _existing(self, name: str, version: str | None, needless: Sequence[str]) -> App:
        if needless:
            message = f"app({name!r}, {needless[0]}=...) needs the topology that it belongs to"
            raise ConfigError(message, hint=f"app({name!r}, build, {needless[0]}=...) declares an application.")
        config = self._config.app(name)
        if version is not None:
            config.topology_of(version)
        return App(self._cluster, self._config, name, version)

    def graph(self, versions: Mapping[str, str] | None = None) -> ProjectGraph:
        """Return its applications with the topics between them, from their topologies and `streams.toml`. It asks no broker.

        Applications that cannot be loaded are named in `unknown`.

        Args:
            versions: Versions of applications by name. Defaults to those that go live first.
        """
        from riverrun.project.members import graph_of

        return graph_of(self._config, versions, self._cluster.kafka)

    def impact(
        self, app: str, *, version: str | None = None, start: str = "", end: str = "", live: bool = False
    ) -> Impact:
        """Return what a release of an application means for others; with an interval, what a backfill of it means.

        Args:
            app: The application that changes.
            version: Its version. Default: the one that goes live first; with `live`, the live one.
            start: Event time at which the interval begins; none for a release.
            end: Event time at which the interval ends (exclusive).
            live: Whether to take the versions that are live, which brokers know, and not those that go live first.

        Raises:
            ConfigError: If there is no such application or version, or it cannot be loaded.
            RangeError: If an end of the interval is no time.
            ReleaseError: If the interval is empty.
        """
        from riverrun.project.changes import impact_of_change
        from riverrun.project.members import graph_of
        from riverrun.releases.topology import load_application

        kafka = self._cluster.kafka
        versions = {name: self.app(name).version for name in self._config.apps} if live else {}
        application = load_application(self._config, app, version=version or versions.get(app), kafka=kafka)
        graph = graph_of(self._config, versions, kafka, {app: application})
        replaced = versions.get(app, application.config.version)
        before = None if start or replaced == application.version else self._before(app, replaced)
        return impact_of_change(application, graph, start=start, end=end, before=before)

    def restatement(
        self,
        app: str,
        start: str,
        end: str,
        *,
        version: str | None = None,
        topics: Iterable[str] = (),
        from_beginning: bool = False,
        gate: bool | None = None,
        approve: str = "",
        without: Iterable[str] = (),
    ) -> Restatement:
        """Return a backfill of an application, and of all that reads its tables. This does nothing yet.

        Args:
            app: The application.
            start: As in `AppRuns.backfill`.
            end: As in `AppRuns.backfill`.
            version: The version whose code recomputes processed rows of the application. Default: the live one.
            topics: As in `AppRuns.backfill`, of the application itself.
            from_beginning: As in `AppRuns.backfill`, for all of them.
            gate: As in `AppRuns.bounded`, for what any of them has not processed yet.
            approve: The id of a verdict on recomputed rows of any of them, whose warnings a person has approved.
            without: Members that cannot be restated, and stay as they are: names of applications, or such as `export lake`.

        Raises:
            ConfigError: If there is no such application or version.
        """
        from riverrun.project.restatement import Restatement
        from riverrun.spark.options import BackfillOptions

        chosen = self.app(app, version=version).runs.chosen
        options = BackfillOptions(tuple(topics), gate, approve, from_beginning)
        return Restatement(self._cluster, self._config, chosen, (start, end), options, tuple(without))

    def environment(self, name: str) -> Environment:
        """Return an environment, to create, compare or drop it. This does nothing yet.

        Args:
            name: Its name: letters, digits and hyphens.

        Raises:
            ConfigError: If it cannot have this name.
        """
        from riverrun.project.environment import Environment

        return Environment(self._cluster, self._config, name)

    def joint_release(self, versions: Mapping[str, str]) -> JointRelease:
        """Return the release of versions of several applications that go live together. This does nothing yet.

        Args:
            versions: The versions, by application.

        Raises:
            ConfigError: If an application or a version is not declared.
        """
        from riverrun.project.joint_release import JointRelease

        return JointRelease(self._cluster, self._config, versions)

    def environments(self) -> list[EnvironmentRecord]:
        """Return the records of all environments, sorted by name."""
        from riverrun.project.environment_records import EnvironmentRegistry

        return EnvironmentRegistry(self._cluster.admin).all()

    def _before(self, app: str, version: str) -> Application | StreamsError:
        from riverrun.releases.topology import load_application

        try:
            return load_application(self._config, app, version=version, kafka=self._cluster.kafka)
        # What it writes is only a part of a plan.
        except StreamsError as error:
            return error

    def reach(self) -> Mapping[str, str]:
        """Check, once, that the brokers answer.

        Returns:
            The client properties.

        Raises:
            BrokerError: If they do not answer, with the cause.
        """
        return self._cluster.admin.kafka.properties

    def progress_bar(self) -> AbstractContextManager[Any]:
        """Return a context that shows how far work in it is, in records, in a terminal or a notebook.

        ```python
        with project.progress_bar():
            project.app("clicks").release("v2").reprocess().gate()
        ```
        """
        from riverrun.project.progress_bar import progress_bar

        return progress_bar()

    if TYPE_CHECKING:
        # Methods of Riverrun's own add-ons, for editors and type checkers.
        archive = archives.archive
        declared_import = transfers.declared_import
        export = transfers.export
        run_export = transfers.run_export
        run_import = transfers.run_import
    # Only at run time: with a `__getattr__`, type checkers would accept any name.
    else:

        def __getattr__(self, name: str) -> Any:
            """Return a method that an add-on of another package has for projects."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(message, name=name, obj=self)
            try:
                refuse_taken("methods", dir(Riverrun))
                function = loaded_part("methods", name)
            # Or hasattr() would raise it.
            except ConfigError as error:
                message = f"{message}: {error}"
                raise AttributeError(message, name=name, obj=self) from error
            if function is None:
                raise AttributeError(message, name=name, obj=self)
            return MethodType(function, self)

        def __dir__(self) -> list[str]:
            """Return all names; those of add-ons only if these can be loaded."""
            with suppress(ConfigError):
                return [*super().__dir__(), *parts("methods", others())]
            return [*super().__dir__()]


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of Riverrun's own add-ons, whose module is imported when it is needed."""

    reference: str

    def __get__(self, project: Riverrun | None, _owner: type) -> Any:
        function = load_attribute(self.reference)
        return function if project is None else MethodType(function, project)


for _name, _reference in parts("methods", BUILT_IN).items():
    setattr(Riverrun, _name, _Method(_reference))


def _callable(built: Built) -> Callable[[StreamsBuilder], Topology] | str:
    return ReadyTopology(built) if isinstance(built, Topology) else built
