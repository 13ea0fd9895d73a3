"""The switch from one version to another: at an offset vector both have processed, with corrections of what is public."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.errors import TaskMigratedError, UnderWayError, VersionConflictError
from pipeline.hosting.application import prepare, with_topics
from pipeline.hosting.fencing import fence_owners, require_nobody
from pipeline.hosting.publication import staging_name
from pipeline.releases.differ import Differ
from pipeline.releases.difference import Side
from pipeline.releases.outputs import tables
from pipeline.releases.tables import create_staging

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.releases.registry import Registry, Release, Step
    from pipeline.releases.versions import Versions

log = logging.getLogger(__name__)

DIFFERENCES = "differences"
"""Below a version's directory: the indexes of what its staging topics and the public ones hold, by topic."""


class Switch:
    """Puts a version in the place of the live one. Run again after a crash, it completes what was begun.

    Args:
        app: The application.
        versions: Its versions.
        registry: Where the release is noted.
        admin: Asks the brokers.
        kafka: Client properties.
    """

    def __init__(
        self, app: str, versions: Versions, registry: Registry, admin: Admin, kafka: Mapping[str, str]
    ) -> None:
        """Nothing is done."""
        self._app = app
        self._versions = versions
        self._registry = registry
        self._admin = admin
        self._kafka = kafka

    def to(self, release: Release, new: str, during: Step, after: Step) -> Release:
        """Make `new` live.

        Before the control topic says that the switch is under way, nothing public has changed; from then on, running it again
        completes it: what has been published already does not differ any more. Of several who do this at the same time the last
        one goes on: it writes the release first, and everybody looks whether it is still his own whenever he has shut out the
        others from a topic.

        Args:
            release: Where it stands.
            new: The version.
            during: The step that says that the switch is under way.
            after: The step that says that it is done.

        Raises:
            UnderWayError: If the live version is processing: a worker, or a run.
            VersionConflictError: If somebody else does the same.
        """
        old_app, new_app = self._versions.releasable(release.live), self._versions.staged(new)
        self._require_idle(old_app)
        mine, way_back = self._registry.write(release), True
        if mine.step is not during:
            mine = self._cut(mine, old_app, new_app, during)
        else:
            self._fence(old_app)
            way_back = self._versions.are_at_one_place(old_app, new_app)
            mine = mine if way_back else self._cut_anew(mine, old_app, new_app)
        corrections = 0
        for topic in tables(new_app):
            corrections += self._bring(new_app, topic, f"{self._app}-corrections-{topic}", mine, Side.OLD)
        previous = release.live if way_back else None
        return self._registry.write(mine.to(after, live=new, previous=previous, corrections=corrections))

    def _cut(self, release: Release, old: Application, new: Application, during: Step) -> Release:
        """Bring both versions to the same offsets and note that the switch is under way: from now on nothing else begins.

        Raises:
            UnderWayError: If something has begun before that was noted. Everything is as before.
        """
        self._fence(old)
        summary = self._versions.follow(new, old)
        self._keep_table(old, release)
        cut = self._registry.write(release.to(during, cut=str(summary.range.end), switch=uuid.uuid4().hex))
        self._fence(old)  # once more: an owner that came back before that was written does not know of it
        try:
            self._require_idle(old)
            self._require_same_place(old, new)
        except UnderWayError:
            self._registry.write(cut.to(release.step))
            raise
        return cut

    def _require_same_place(self, old: Application, new: Application) -> None:
        if not self._versions.are_at_one_place(old, new):
            message = f"{old.id} has moved on during the switch"
            raise UnderWayError(message, hint="Stop its workers and runs, then try again.")

    def _cut_anew(self, release: Release, old: Application, new: Application) -> Release:
        """Let the new version follow an old one that has moved on since a cut whose switch died.

        What the old one has published since is corrected with all else, but is not in the table that was kept: there is no way
        back to it, and if it is to be released again, it is computed anew.
        """
        log.warning("%s has moved on during the switch: it cannot be rolled back to", old.id)
        summary = self._versions.follow(new, old)
        return replace(release, cut=str(summary.range.end), digests=release.digests | {old.version: ""})

    def _require_idle(self, application: Application) -> None:
        """Make sure that nothing processes a version; being fenced, it would only take its tasks over again.

        Raises:
            UnderWayError: If a worker or a run does.
        """
        require_nobody(application, self._admin)

    def _fence(self, application: Application) -> None:
        """Take all tasks over for a moment: whoever still runs one can commit nothing more."""
        fence_owners(application, prepare(with_topics(application, self._admin), self._admin).tasks)

    def _keep_table(self, application: Application, release: Release) -> None:
        """Bring a version's staging topics to what it has published so far: what a way back starts from."""
        create_staging(self._admin, application)
        for topic in tables(application):
            self._bring(application, topic, f"{application.id}-keep-{topic}", release, Side.NEW)

    def _bring(self, application: Application, topic: str, name: str, mine: Release, side: Side) -> int:
        """Bring a public topic to the content of a version's staging topic, or the other way round.

        Args:
            application: The version.
            topic: The public topic.
            name: Names whoever does this.
            mine: The release, as it was written last: ends if somebody else has taken it over.
            side: Which of the two is changed: the public one is old.

        Returns:
            Number of records that this switch has published to the topic, in earlier attempts as well.

        Raises:
            VersionConflictError: If somebody has.
        """
        staging, directory = staging_name(application.id, topic), application.directory / DIFFERENCES / topic
        try:
            with Differ(name, topic, staging, directory, self._kafka, self._admin) as differ:
                return differ.publish(lambda: self._registry.require(mine), mine.switch, side)
        except TaskMigratedError as error:
            message = f"{mine.app}: somebody else is switching its version"
            raise VersionConflictError(message, hint="Look at `millrace release status`.") from error
