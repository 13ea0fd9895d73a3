"""The release of a version: each step separately, or several in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import ConfigError
from riverrun.hosting.release import BEGUN
from riverrun.releases.chain import await_workers, take_through
from riverrun.releases.releaser import Releaser
from riverrun.releases.repair import Repairer
from riverrun.releases.scope import scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.config import ProjectConfig
    from riverrun.hosting.release import Release
    from riverrun.project.cluster import ProjectCluster
    from riverrun.releases.chain import Through
    from riverrun.releases.release_plan import ReleasePlan
    from riverrun.releases.repair import Repair


class AppRelease:
    """Switches an application to another version. Each step returns this object, so that steps can be chained.

    ```python
    clicks.release("v2").start().reprocess().gate().cut()
    ```

    Args:
        cluster: Brokers and Spark.
        project: The project that declares it.
        name: The application.
        to: The version to release; None for the one of the current release.

    Raises:
        ConfigError: If the version is not declared.
    """

    def __init__(self, cluster: ProjectCluster, project: ProjectConfig, name: str, to: str | None) -> None:
        if to is not None:
            project.app(name).topology_of(to)
        self._to = to
        self.releaser = Releaser(project, name, cluster.admin, cluster.sessions.session, cluster.by or "")
        """All steps of a release, with their results."""
        self.repairer = Repairer(project, name, cluster.admin, cluster.sessions.session, cluster.by or "")
        """Corrects a time range of the live version's tables."""

    @property
    def status(self) -> Release:
        """The state of the release.

        Raises:
            ReleaseError: If the control topic has lost it.
            BrokerError: If brokers do not answer.
        """
        return self.releaser.status()

    def plan(self, *, carry: bool = False) -> ReleasePlan:
        """Return the plan: the changes, and the number of records to process. Changes nothing.

        Args:
            carry: Whether the release would take state over from the live version.

        Raises:
            ReleaseError: If the versions cannot follow each other, or nothing can be taken over.
            BrokerError: If brokers do not answer.
        """
        return self.releaser.plan(self._candidate(), carry=carry)

    def start(self, *, carry: bool = False) -> AppRelease:
        """Start the release. The previous release can no longer be rolled back.

        Args:
            carry: Whether to take state over from the live version where nothing about it has changed. The rest is computed,
                from the beginning of the inputs, in this call.

        Raises:
            ReleaseError: If another version is being released, or this one cannot be; if nothing can be taken over.
            UnderWayError: If state is to be taken over, and a host of the candidate is running.
        """
        self.releaser.start(self._candidate(), carry=carry)
        return self

    def reprocess(self) -> AppRelease:
        """Compute the candidate from the beginning into fresh state and staging topics. Starts the release if necessary.

        Raises:
            ReleaseError: If this step does not follow the release's current step.
            EngineError: If Spark fails.
        """
        if self._to is not None and self._is_new():
            self.start()
        self.releaser.reprocess()
        return self

    def wait_ready(self, on_wait: Callable[[str], None] = lambda _line: None) -> AppRelease:
        """Wait until workers of the candidate have caught up, if there are any.

        Args:
            on_wait: Called repeatedly with their progress, as a line of text.

        Raises:
            ReleaseError: If no release is under way.
        """
        await_workers(self.releaser, on_wait)
        return self

    def gate(self) -> AppRelease:
        """Check the candidate's data; `status.verdict` has the result.

        Raises:
            GateFailedError: If it must not go live.
        """
        self.releaser.gate()
        return self

    def approve(self, verdict_id: str) -> AppRelease:
        """Approve the warnings of a gate.

        Args:
            verdict_id: The approved verdict: `status.verdict.id`.

        Raises:
            ReleaseError: If it is not the latest verdict, or blocks the release.
        """
        self.releaser.approve(verdict_id)
        return self

    def cut(self) -> AppRelease:
        """Make the candidate the live version, and correct the rows of public tables that differ.

        Raises:
            ApprovalNeededError: If the gate has warnings that no person has approved.
            ReleaseError: If it cannot be cut.
        """
        self.releaser.cut()
        return self

    def rollback(self) -> AppRelease:
        """Make the previous version live again.

        Raises:
            ReleaseError: If a rollback is no longer possible.
        """
        self.releaser.rollback()
        return self

    def repair(
        self, start: str, end: str, *, keys: Iterable[str] = (), topics: Iterable[str] = (), approve: str = ""
    ) -> Repair:
        """Recompute a time range of the live version's tables, check it, and publish the differences. No version is switched.

        Args:
            start: Event time of the first rows: `2013-07-01T00:00:00+00:00`.
            end: Event time at which the rows end, exclusive.
            keys: Keys, as `diff` shows them; all by default.
            topics: Public topics; all tables by default.
            approve: The id of a verdict whose warnings a person has approved.

        Returns:
            The result of the repair.

        Raises:
            GateFailedError: If an expectation of critical severity fails.
            ApprovalNeededError: If the gate has warnings that were not approved.
            ReleaseError: If the rows cannot be computed from records of their time, or a release is under way.
            RangeError: If a time cannot be read, or records of that time have been deleted.
        """
        return self.repairer.repair(scope_of(start, end, keys, topics), approve)

    def retire(self) -> AppRelease:
        """Delete the state and topics of the version that was replaced last. It cannot be rolled back to afterwards.

        Raises:
            ReleaseError: If it is live, or being released.
        """
        self.releaser.retire("")
        return self

    def abort(self) -> AppRelease:
        """Abandon the release before its cut.

        Raises:
            ReleaseError: If it is past its cut.
        """
        self.releaser.abort()
        return self

    def take_through(
        self, last: Through, tell: Callable[[str], None] = lambda _line: None, *, carry: bool = False
    ) -> AppRelease:
        """Take all steps from the start through one.

        Args:
            last: The last step.
            tell: Called with each finished step.
            carry: Whether the candidate takes state over from the live version (`start`).

        Raises:
            ApprovalNeededError: If the gate has warnings: a person approves them, and cuts.
            StreamsError: If a step fails; the earlier ones are done.
        """
        take_through(self.releaser, self._candidate(), last, tell, carry=carry)
        return self

    def _is_new(self) -> bool:
        release = self.status
        return release.step not in BEGUN or release.candidate != self._to

    def _candidate(self) -> str:
        if self._to is None:
            message = "The version to release is missing"
            raise ConfigError(message, hint='Name it: app.release("v2").')
        return self._to
