"""`ProjectCluster` and `SparkSessions`: the brokers and the Spark sessions of a project."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from riverrun.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from riverrun.kafka.door import Kafka
    from riverrun.spark.java import JavaAhead
    from riverrun.spark.session import SessionOnDemand


class ProjectCluster:
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
        kafka: Kafka,
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
        """The client that asks the brokers, once they have answered. All threads share it."""
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
        further = given if isinstance(given, Mapping) else {}
        self._session = None if isinstance(given, Mapping) else given
        self.settings: Mapping[str, str] = {**settings, **further}
        self.master = master
        self.output: Callable[[], AbstractContextManager[int | None]] = nullcontext
        """Context that returns a file descriptor for Java's standard error output, which commands hide in part."""
        self.on_start: Callable[[], None] = lambda: None
        """Called when a session has started."""
        self._environ = environ
        self._ahead: JavaAhead | None = None

    @property
    def on_demand(self) -> SessionOnDemand:
        """Makes a session when called, and knows whether that would be on this machine."""
        from riverrun.spark.session import SessionOnDemand, on_demand

        if self._session is not None:
            return SessionOnDemand(self.session)
        return on_demand(self.session, self.master, self.settings, self.ahead)

    @property
    def lacks_archive(self) -> bool:
        """Return whether an archive of classes would let sessions of this machine start faster."""
        from riverrun.spark.java import classes_archive

        return self.on_demand.is_local and not classes_archive(self._environ).exists()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Start Java in the background during the body, in which a session is probably needed. Ends it if none was."""
        from riverrun.spark.java import JavaAhead, classes_archive
        from riverrun.spark.session import start_java

        def launch() -> None:
            archive = classes_archive(self._environ)
            start_java(self.master, self.settings, archive=archive, output=self.output)

        self._ahead = JavaAhead(launch)
        try:
            with self._ahead.starting():
                yield
        finally:
            self._ahead = None

    def session(self, packages: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> Any:
        """Return a session.

        Args:
            packages: Maven coordinates of further Java libraries; an existing session does not load them.
            defaults: Settings that all others override.
        """
        if self._session is not None:
            return self._session
        from riverrun.extras import require_extra

        require_extra("spark")
        from riverrun.spark.java import classes_archive
        from riverrun.spark.session import spark_session

        # Java may be starting in the background: a second one would take as long again.
        if self._ahead is not None:
            self._ahead.wait()
        settings, archive = {**(defaults or {}), **self.settings}, classes_archive(self._environ)
        session = spark_session(self.master, settings, packages=packages, archive=archive, output=self.output)
        self.on_start()
        return session
