"""`ChosenVersion`: an application in the version that a program has chosen, ready to be loaded, connected and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.config.secrets import TOKEN, checked_token
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.earlier_records import with_archive
from riverrun.releases.topology import load_application

if TYPE_CHECKING:
    from riverrun.config import AppConfig, ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.project.cluster import ProjectCluster


@dataclass(frozen=True, slots=True)
class ChosenVersion:
    """An application in one version, or in the version that is live at each call.

    Args:
        cluster: Brokers and Spark.
        project: The project that declares it.
        name: Name of the application.
        named: Its version; None for the live one.
    """

    cluster: ProjectCluster
    project: ProjectConfig
    name: str
    named: str | None = None

    @property
    def config(self) -> AppConfig:
        """The application's configuration."""
        return self.project.app(self.name)

    @property
    def version(self) -> str:
        """The chosen version, or the live one."""
        if self.named is not None:
            return self.named
        from riverrun.hosting.control_topic import release_of

        return release_of(self.cluster.admin, self.config).live

    @property
    def application_id(self) -> str:
        """`<name>-<version>`."""
        return self.config.application_id(self.version)

    @property
    def token(self) -> str:
        """The token that callers of its instances show; empty for none."""
        return self.config.streams.server_token or checked_token(TOKEN, self.cluster.environ.get(TOKEN, ""))

    def loaded(self) -> Application:
        """Return the application with its topology, for inspection."""
        return load_application(self.project, self.name, version=self.version, kafka=self.cluster.kafka)

    def processing(self) -> Application:
        """Return the application for processing; see `processing_application`."""
        from riverrun.releases.versions import processing_application

        return processing_application(self.project, self.cluster.admin, self.name, self.named)

    def connected(self) -> ConnectedApplication:
        """Return the application on its brokers, for inspection."""
        from riverrun.hosting.control_topic import ReleaseRegistry

        application = self.loaded()
        elsewhere = ReleaseRegistry.at(self.cluster.admin).elsewhere(self.name, application.version)
        return self.on_brokers(application.reading(elsewhere))

    def on_brokers(self, application: Application) -> ConnectedApplication:
        """Return a loaded application on its brokers, which read from the archive of its inputs if there is one."""
        admin = with_archive(self.cluster.admin, application.config.streams.archive_url)
        return ConnectedApplication(application, admin)

    def require_no_switch(self, application: Application, *, may_be_held: bool = False) -> None:
        """Check that the loaded version may process: no switch of versions is under way, or has happened since.

        Args:
            application: The loaded version.
            may_be_held: Whether it may process although outputs of a run are held back; otherwise the live version may not.
        """
        from riverrun.hosting.control_topic import release_of

        live = application.version if self.named is None else None
        release_of(self.cluster.admin, application.config).require_no_switch(live)
        if not may_be_held and application.published is None:
            self.require_nothing_held(application.version)

    def require_nothing_held(self, version: str) -> None:
        """Check that no outputs of a run of a version are held back."""
        from riverrun.hosting.control_topic import release_of

        release = release_of(self.cluster.admin, self.config)
        if release.held is not None and release.held.version == version:
            release.require_nothing_held()
