"""`Cluster`: the brokers and the Spark of a project.

Creates the Spark sessions of a project.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from riverrun.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from riverrun.spark.session import SessionOnDemand


class Cluster:
    """Brokers, and the Spark for bounded runs. Connections are opened on demand.

    Args:
        kafka: Client properties.
        sessions: Starts Spark.
        environ: The environment variables.
        by: The user in the history of releases and runs; None for this user on this machine.
        on_wait: Called once with the brokers, if they take longer than a moment to answer.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        sessions: SparkSessions,
        environ: Mapping[str, str],
        by: str | None,
        on_wait: Callable[[str], None],
    ) -> None:
        self.kafka = kafka
        self.sessions = sessions
        self.environ = environ
        self.by = by
        self._on_wait = on_wait

    @cached_property
    def admin(self) -> Admin:
        """The client that asks the brokers, once they have answered. All threads share it.

        Raises:
            BrokerError: If they do not answer, with the cause.
        """
        admin = Admin(self.kafka)
        admin.require_answer(self._on_wait)
        return admin

    def is_answered(self, within_s: float) -> bool:
        """Return whether any broker answers within this number of seconds."""
        return Admin(self.kafka).is_answered(within_s)


class SparkSessions:
    """Starts a session on demand, or returns the user's own.

    Args:
        settings: Settings of Spark from the project.
        given: Further settings, which override those; or a session.
        master: Spark's master URL, which overrides both.
        environ: The environment variables, which locate Java.
    """

    def __init__(self, settings: Mapping[str, str], given: Any, master: str | None, environ: Mapping[str, str]) -> None:
        """Start without a session."""
        further = given if isinstance(given, Mapping) else {}
        self._session = None if isinstance(given, Mapping) else given
        self.settings: Mapping[str, str] = {**settings, **further}
        self.master = master
        self.starting: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context in which a session starts in this process: the command line hides Java's output with it."""
        self._environ = environ

    @property
    def on_demand(self) -> SessionOnDemand:
        """Makes a session when called, and knows whether that would be on this machine."""
        from riverrun.spark.session import SessionOnDemand, on_demand

        if self._session is not None:
            return SessionOnDemand(self.session)
        return on_demand(self.session, self.master, self.settings)

    def session(self, packages: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> Any:
        """Return a session.

        Args:
            packages: Maven coordinates of further Java libraries; an existing session does not load them.
            defaults: Settings that all others override.

        Raises:
            ConfigError: If the master is invalid.
            MissingExtraError: If Spark is not installed.
            EngineError: If it does not start.
        """
        if self._session is not None:
            return self._session
        from riverrun.extras import require_extra

        require_extra("spark")
        from riverrun.spark.java import classes_archive
        from riverrun.spark.session import spark_session

        settings, archive = {**(defaults or {}), **self.settings}, classes_archive(self._environ)
        return spark_session(self.master, settings, packages=packages, archive=archive, starting=self.starting)
