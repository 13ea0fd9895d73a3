"""What the options before a command say, and how commands get at applications and brokers from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pipeline.config import ProjectConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.hosting.application import Application
    from pipeline.kafka.broker import EmbeddedBroker


MASTER = typer.Option(
    help="Spark's master URL, or sc://host:port of a Spark Connect server; as streams.toml says if left out."
)
"""The option `--master`."""


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

    def application(self, name: str, version: str | None = None) -> Application:
        """One version of an application, with its topology built."""
        from pipeline import StreamsBuilder  # noqa: PLC0415 - `millrace --help` must be fast
        from pipeline.hosting.application import load_application  # noqa: PLC0415 - as above

        return load_application(self.project(), name, StreamsBuilder, version=version)

    def live_application(self, name: str, version: str | None = None) -> Application:
        """A version of an application; the one whose outputs are public if none is named."""
        from pipeline.releases.registry import live_version  # noqa: PLC0415 - as above

        project = self.project()
        return self.application(name, version or live_version(project.kafka, name, project.app(name).version))

    def spark(
        self, master: str | None = None, defaults: Mapping[str, str] | None = None, packages: Sequence[str] = ()
    ) -> Any:
        """A Spark session as `[spark]` says, with further Java libraries; `master` comes before that, `defaults` after it."""
        from pipeline.spark.session import spark_session  # noqa: PLC0415 - as above

        return spark_session(master, {**(defaults or {}), **self.project().spark}, packages=packages)

    def broker(self, port: int) -> EmbeddedBroker:
        """The embedded broker of this home."""
        from pipeline.kafka.broker import EmbeddedBroker  # noqa: PLC0415 - as above

        java_home = self.environ.get("JAVA_HOME")
        return EmbeddedBroker(self.home / "broker", self.home, port, java_home=Path(java_home) if java_home else None)


def settings_of(context: typer.Context) -> Settings:
    """The options before the command."""
    found = context.find_object(Settings)
    assert found is not None, "the callback sets it"  # noqa: S101 - a mistake of this package
    return found
