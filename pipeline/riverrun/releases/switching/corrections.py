"""Publishes corrections of public tables during a switch, and keeps copies of the public rows for a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import TaskMigratedError, VersionConflictError
from riverrun.releases.differences.differ import Differ, everything
from riverrun.releases.differences.difference import Side
from riverrun.releases.versions.outputs import outputs, tables
from riverrun.releases.versions.tables import create_staging

if TYPE_CHECKING:
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.releases.control_topic.registry import Registry, Release
    from riverrun.releases.differences.scope import Scope


class Corrections:
    """Makes public tables equal to a version's staging tables, or staging tables equal to the public ones.

    Args:
        app: The application.
        registry: Where the release is recorded.
    """

    def __init__(self, app: str, registry: Registry) -> None:
        self._app = app
        self._registry = registry

    def read_ahead(self, new: ConnectedApplication) -> None:
        """Read the public tables and those of a version as they are now, so that little is left to read at the switch."""
        for topic in tables(new.application):
            with Differ.of(new, topic) as differ:
                differ.advance(*differ.stable_ends())

    def publish(self, new: ConnectedApplication, mine: Release, scope: Scope | None = None) -> int:
        """Make the public tables equal to those of a version. Logs are not changed.

        Args:
            new: The version.
            mine: The release, as it was written last.
            scope: The rows to correct; all by default.

        Returns:
            Number of records that this switch has published, including earlier attempts.

        Raises:
            VersionConflictError: If another process has taken the release over.
        """
        kinds = outputs(new.application)
        chosen = [topic for topic in tables(new.application) if scope is None or scope.is_about(topic, kinds)]
        return sum(
            self._brought(new, topic, f"{self._app}-corrections-{topic}", mine, Side.OLD, scope=scope)
            for topic in chosen
        )

    def keep(self, old: ConnectedApplication, mine: Release, *, is_settled: bool = True) -> None:
        """Make a version's staging tables equal to what it has published so far. A rollback starts from them.

        Args:
            old: The version.
            mine: The release, as it was written last.
            is_settled: Whether nothing publishes at present. If something does, this call only leaves less to do later.

        Raises:
            VersionConflictError: If another process has taken the release over.
        """
        create_staging(old)
        for topic in tables(old.application):
            self._brought(old, topic, f"{old.id}-keep-{topic}", mine, Side.NEW, is_settled=is_settled)

    def _brought(
        self,
        version: ConnectedApplication,
        topic: str,
        name: str,
        mine: Release,
        side: Side,
        *,
        is_settled: bool = True,
        scope: Scope | None = None,
    ) -> int:
        """Make a public topic, the old side, equal to a version's staging topic; or the other way round."""
        sink = version.topology.sink_of(topic)
        covers = everything if scope is None or sink is None else scope.covers(sink, topic)
        try:
            with Differ.of(version, topic, name) as differ:
                return differ.publish(
                    lambda: self._registry.require(mine), mine.switch, side, is_settled=is_settled, covers=covers
                )
        except TaskMigratedError as error:
            message = f"{mine.app}: somebody else is switching its version"
            raise VersionConflictError(message, hint="Look at `riverrun release status`.") from error
