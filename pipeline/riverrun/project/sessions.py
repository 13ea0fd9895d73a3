"""Creates the Spark sessions of a project."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


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
        from riverrun.spark.engine.java_classes import classes_archive
        from riverrun.spark.session import spark_session

        settings, archive = {**(defaults or {}), **self.settings}, classes_archive(self._environ)
        return spark_session(self.master, settings, packages=packages, archive=archive, starting=self.starting)
