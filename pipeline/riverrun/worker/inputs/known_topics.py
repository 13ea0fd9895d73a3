"""The topics that an application is known to read and write, and the tasks that follow from them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout


class KnownTopics:
    """Topics to read and to write; looked up at the start, and again when they are reported to differ.

    Args:
        connected: The application.
    """

    def __init__(self, connected: ConnectedApplication) -> None:
        self.connected = connected
        """The application that reads the known topics."""
        self.repartition: frozenset[str] = frozenset()
        """Full names of its repartition topics."""
        self.sources: Mapping[str, int] = {}
        """Number of partitions of each external topic that is read."""
        self._looked_at = time.monotonic()

    @property
    def application(self) -> Application:
        """Return the application that reads the known topics."""
        return self.connected.application

    @property
    def layout(self) -> Layout:
        """Return its tasks and internal topics."""
        return self.connected.layout

    def find(self) -> None:
        """Check topics, and create internal ones.

        Raises:
            TopicError: If topics are missing or do not fit.
            BrokerError: If brokers do not answer.
        """
        found = self.connected.resolved()
        found.prepare()
        self._note(found, found.partitions)

    def differ(self, sources: Mapping[str, int]) -> bool:
        """Return whether these topics and numbers of partitions differ from the known ones."""
        return sources != self.sources

    def change(self, sources: Mapping[str, int]) -> frozenset[TaskId]:
        """Read the given topics from now on.

        Args:
            sources: Number of partitions by topic.

        Returns:
            The tasks that change or no longer exist.

        Raises:
            TopicError: If the tasks do not fit the existing internal topics.
            BrokerError: If brokers do not answer; then nothing has changed.
        """
        changed = self.connected.reading(sources)
        before, after = self.layout.tasks, changed.prepare().tasks
        self._note(changed, sources)
        return frozenset(task for task in before if before[task] != after.get(task))

    def look_soon(self) -> None:
        """Let `look_if_due` look at its next call: topics have changed."""
        self._looked_at = -math.inf

    def look_if_due(self) -> Mapping[str, int] | None:
        """Return the present topics to read; None if it is not time to ask (`metadata.max.age.ms`).

        Raises:
            BrokerError: If brokers do not answer.
        """
        if time.monotonic() - self._looked_at < self.application.config.streams.metadata_max_age_ms / 1000:
            return None
        self._looked_at = time.monotonic()
        return self.connected.resolved().partitions

    def _note(self, connected: ConnectedApplication, sources: Mapping[str, int]) -> None:
        self.connected, self.sources = connected, sources
        self.repartition = frozenset(topic.name for topic in self.layout.repartition_topics)
