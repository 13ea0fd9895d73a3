"""The release of a version: each step on its own, or one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.releases.releaser import Releaser
from pipeline.releases.repair import Repairer
from pipeline.releases.scope import scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.config import ProjectConfig
    from pipeline.project.cluster import Cluster
    from pipeline.releases.chain import Through
    from pipeline.releases.registry import Release
    from pipeline.releases.releaser import ReleasePlan
    from pipeline.releases.repair import Repair


class AppRelease:
    """Takes an application to another version. Each step returns this again, so that steps can be written in a row.

    ```python
    clicks.release("v2").start().reprocess().gate().cut()
    ```

    Args:
        cluster: What it runs on.
        project: The project that declares it.
        name: The application.
        to: The version that is to go live; None for that of the release that is under way.
    """

    def __init__(self, cluster: Cluster, project: ProjectConfig, name: str, to: str | None) -> None:
        self._to = to
        self.releaser = Releaser(project, name, cluster.admin, cluster.sessions.session, cluster.by or "")
        """All that a release can do, step by step, with what each step returns."""
        self.repairer = Repairer(project, name, cluster.admin, cluster.sessions.session, cluster.by or "")
        """Corrects a stretch of the live version's tables."""

    @property
    def status(self) -> Release:
        """The place where the release stands.

        Raises:
            ReleaseError: If the control topic has lost it.
            BrokerError: If brokers do not answer.
        """
        return self.releaser.status()

    def plan(self) -> ReleasePlan:
        """Return what the release would do: what changed, and how much there is to process. Changes nothing.

        Raises:
            ReleaseError: If the versions cannot follow each other.
            BrokerError: If brokers do not answer.
        """
        return self.releaser.plan(self._candidate())

    def start(self) -> AppRelease:
        """Begin; there is no way back from the last release any more.

        Raises:
            ReleaseError: If another version is being released, or this one cannot be.
        """
        self.releaser.start(self._candidate())
        return self

    def reprocess(self) -> AppRelease:
        """Compute the candidate from the beginning into fresh state and staging topics. Begins the release, if it has not.

        Raises:
            ReleaseError: If the release does not stand where this may follow.
            EngineError: If Spark fails.
        """
        if self._to is not None and self._is_new():
            self.start()
        self.releaser.reprocess()
        return self

    def wait_ready(self, on_wait: Callable[[str], None] = lambda _line: None) -> AppRelease:
        """Wait until workers of the candidate have caught up, if there are any.

        Args:
            on_wait: Told now and then how far they are.

        Raises:
            ReleaseError: If nothing is being released.
        """
        from pipeline.releases.chain import await_workers

        await_workers(self.releaser, on_wait)
        return self

    def gate(self) -> AppRelease:
        """Judge the candidate's data; `status.verdict` says what was found.

        Raises:
            GateFailedError: If it must not go live.
        """
        self.releaser.gate()
        return self

    def approve(self, verdict_id: str) -> AppRelease:
        """Approve the warnings of a gate.

        Args:
            verdict_id: The verdict that was looked at: `status.verdict.id`.

        Raises:
            ReleaseError: If it is not the last one, or blocks the release.
        """
        self.releaser.approve(verdict_id)
        return self

    def cut(self) -> AppRelease:
        """Put the candidate in the place of the live version, and correct the public tables by what differs.

        Raises:
            ApprovalNeededError: If the gate has warnings that nobody has approved.
            ReleaseError: If it cannot be cut.
        """
        self.releaser.cut()
        return self

    def rollback(self) -> AppRelease:
        """Put the previous version back.

        Raises:
            ReleaseError: If there is no way back.
        """
        self.releaser.rollback()
        return self

    def repair(
        self, start: str, end: str, *, keys: Iterable[str] = (), topics: Iterable[str] = (), approve: str = ""
    ) -> Repair:
        """Compute a stretch of the live version's tables anew, judge it, and publish what differs. Nothing is switched.

        Args:
            start: Event time at which the rows begin: `2013-07-01T00:00:00+00:00`.
            end: Event time before which they end.
            keys: Keys, as `diff` shows them; all if left out.
            topics: Public topics; all tables if left out.
            approve: The id of a verdict whose warnings somebody has approved.

        Raises:
            GateFailedError: If an expectation of critical severity fails.
            ApprovalNeededError: If the gate has warnings that were not approved.
            ReleaseError: If the rows cannot be computed from records of their time, or a release is under way.
            RangeError: If a time cannot be read, or records of that time have been deleted.
        """
        return self.repairer.repair(scope_of(start, end, keys, topics), approve)

    def retire(self) -> AppRelease:
        """Delete what the version has computed that lost its place last. There is no way back to it.

        Raises:
            ReleaseError: If it is live, or being released.
        """
        self.releaser.retire("")
        return self

    def abort(self) -> AppRelease:
        """Give the release up before its cut.

        Raises:
            ReleaseError: If it is past its cut.
        """
        self.releaser.abort()
        return self

    def take_through(self, last: Through, tell: Callable[[str], None] = lambda _line: None) -> AppRelease:
        """Take all steps from the start through one.

        Args:
            last: The last step.
            tell: Told of each step that is done.

        Raises:
            ApprovalNeededError: If the gate has warnings: a person approves them, and cuts.
            StreamsError: If a step fails; those before it are done.
        """
        from pipeline.releases.chain import take_through

        take_through(self.releaser, self._candidate(), last, tell)
        return self

    def _is_new(self) -> bool:
        from pipeline.releases.registry import Step

        release = self.status
        begun = {Step.PLANNED, Step.REPROCESSED, Step.GATED}
        return release.step not in begun or release.candidate != self._to

    def _candidate(self) -> str:
        if self._to is None:
            message = "It is not said which version is to go live"
            raise ConfigError(message, hint='Name it: app.release("v2").')
        return self._to
