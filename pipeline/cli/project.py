"""What the options before a command say, and how commands get at applications and brokers from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.config import ProjectConfig
from pipeline.config.secrets import checked_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.config import AppConfig
    from pipeline.hosting.application import Application
    from pipeline.kafka.embedded.broker import EmbeddedBroker


App = Annotated[str, typer.Argument(help="The application's name in streams.toml.")]
"""The argument of commands that are about one application."""
Version = Annotated[str | None, typer.Option(help="Which version; the live one if left out.")]
"""The option `--version`, which has one meaning for all commands."""
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL, or sc://host:port of a Spark Connect server; as streams.toml says if left out."
    ),
]
"""The option `--master`."""
TOKEN = "MILLRACE_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable with what callers of the HTTP interface show."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options before the command.

    Args:
        config: Path of `streams.toml`.
        home: Where downloads and the embedded broker are kept.
        environ: The environment.
    """

    config: Path
    home: Path
    environ: Mapping[str, str]

    def project(self) -> ProjectConfig:
        """The project's configuration."""
        return ProjectConfig.load(self.config, self.environ)

    def reached(self) -> ProjectConfig:
        """The project's configuration, once its brokers have answered.

        Raises:
            BrokerError: If they do not, with what is wrong.
        """
        project = self.project()
        _reach(project)
        return project

    def token_of(self, config: AppConfig) -> str:
        """What callers of an application's instances show; empty for nothing.

        Raises:
            ConfigError: If a header cannot hold it.
        """
        return config.streams.server_token or checked_token(TOKEN, self.environ.get(TOKEN, ""))

    def application(self, name: str, version: str | None = None, *, asks: bool = True) -> Application:
        """One version of an application, with its topology built.

        Args:
            name: The application.
            version: Which version; None for the live one, which the brokers know.
            asks: Whether brokers will be asked about it in any case: then they have to answer.
        """
        from pipeline import StreamsBuilder
        from pipeline.hosting.application import load_application

        project = self.project()
        project.app(name)
        if asks or version is None:
            _reach(project)
        chosen = version or self._live_version(project, name)
        return load_application(project, name, StreamsBuilder, version=chosen)

    def processing(self, name: str, version: str | None = None) -> Application:
        """One version of an application that is to process; another one than the live one publishes nothing.

        Args:
            name: The application.
            version: Which version; None for the live one, which the brokers know.
        """
        from pipeline.releases.versions import processing_application

        project = self.project()
        project.app(name)
        _reach(project)
        application = processing_application(project, name, version)
        if application.published is not None:
            topics = ", ".join(application.published.values()) or "none"
            typer.echo(f"{name} {application.version} is not live, and publishes nothing: it writes to {topics}")
        return application

    def local_state(self, name: str, version: str | None = None, state_dir: Path | None = None) -> tuple[str, Path]:
        """The application id of one version of an application, and where local state is kept on this machine.

        Args:
            name: The application.
            version: Which version; None for the live one, which the brokers know.
            state_dir: Where that of all applications is; None for where `state.dir` says.

        Raises:
            ConfigError: If there is no such application or version.
        """
        project = self.project()
        config = project.app(name)
        if version is None:
            _reach(project)
        chosen = version or self._live_version(project, name)
        config.topology_of(chosen)
        return config.application_id(chosen), (state_dir or project.state_directory(config)).resolve()

    def _live_version(self, project: ProjectConfig, name: str) -> str:
        from pipeline.releases.registry import live_version

        return live_version(project.kafka, project.app(name))

    def require_no_switch(self, application: Application, version: str | None) -> None:
        """Make sure that an application may process: no switch is under way.

        Args:
            application: What is to process.
            version: The version that was named; None if it is the live one that is meant.

        Raises:
            UnderWayError: If one is, or has taken place since the application was loaded.
        """
        from pipeline.releases.registry import require_no_switch

        live = application.version if version is None else None
        require_no_switch(application.kafka, application.config, live)

    def spark(
        self, master: str | None = None, defaults: Mapping[str, str] | None = None, packages: Sequence[str] = ()
    ) -> Any:
        """A Spark session as `[spark]` says, with further Java libraries; `master` comes before that, `defaults` after it."""
        from pipeline.spark.engine.java_classes import classes_archive
        from pipeline.spark.session import spark_session

        settings = {**(defaults or {}), **self.project().spark}
        return spark_session(master, settings, packages=packages, archive=classes_archive(self.environ, self.home))

    def broker(self, port: int) -> EmbeddedBroker:
        """The embedded broker of this home."""
        from pipeline.kafka.embedded.broker import EmbeddedBroker

        java_home = self.environ.get("JAVA_HOME")
        return EmbeddedBroker(self.home / "broker", self.home, port, java_home=Path(java_home) if java_home else None)


def _reach(project: ProjectConfig) -> None:
    """Make sure that the brokers answer before anything is asked of them; say that they are waited for."""
    from pipeline.kafka.reaching import require_answer

    require_answer(project.kafka, lambda servers: typer.echo(f"Waiting for brokers at {servers}", err=True))


def settings_of(context: typer.Context) -> Settings:
    """The options before the command."""
    found = context.find_object(Settings)
    assert found is not None, "the callback sets it"  # noqa: S101 - a mistake of this package
    return found
