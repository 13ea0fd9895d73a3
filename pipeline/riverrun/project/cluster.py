"""`Cluster`: the brokers and the Spark of a project."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from riverrun.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.project.sessions import SparkSessions


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
        from riverrun.kafka.reaching import require_answer

        require_answer(self.kafka, self._on_wait)
        return Admin(self.kafka)

    def is_answered(self, within_s: float) -> bool:
        """Return whether any broker answers within this number of seconds."""
        return Admin(self.kafka).is_answered(within_s)
