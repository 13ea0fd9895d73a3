"""The topics that an application reads and writes, as far as they are known, and the tasks that come of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.application import Application
    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.records import TaskId
    from pipeline.runtime.layout import Layout


class KnownTopics:
    """The topics to read and to write; looked at once at the start, and again when they are said to differ.

    Args:
        connected: Whose topics.
    """

    def __init__(self, connected: ConnectedApplication) -> None:
        self.connected = connected
        """The application, as it reads the topics that are known."""
        self.repartition: frozenset[str] = frozenset()
        """Full names of its repartition topics."""
        self._sources: Mapping[str, int] = {}
        self._looked_at = time.monotonic()

    @property
    def application(self) -> Application:
        """The application, as it reads the topics that are known."""
        return self.connected.application

    @property
    def layout(self) -> Layout:
        """Its tasks and internal topics."""
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
        """Whether these topics, with so many partitions, are others than those that are known."""
        return sources != self._sources

    def change(self, sources: Mapping[str, int]) -> frozenset[TaskId]:
        """Read these topics from now on, and return the tasks that are others with them, or do not exist any more.

        Raises:
            TopicError: If the tasks do not fit the internal topics that there are.
            BrokerError: If brokers do not answer; then nothing has changed.
        """
        changed = self.connected.reading(sources)
        before, after = self.layout.tasks, changed.prepare().tasks
        self._note(changed, sources)
        return frozenset(task for task in before if before[task] != after.get(task))

    def look_if_due(self) -> Mapping[str, int] | None:
        """The topics that there are to read now; None if it is not time to ask (`metadata.max.age.ms`).

        Raises:
            BrokerError: If brokers do not answer.
        """
        if time.monotonic() - self._looked_at < self.application.config.streams.metadata_max_age_ms / 1000:
            return None
        self._looked_at = time.monotonic()
        return self.connected.resolved().partitions

    def _note(self, connected: ConnectedApplication, sources: Mapping[str, int]) -> None:
        self.connected, self._sources = connected, sources
        self.repartition = frozenset(topic.name for topic in self.layout.repartition_topics)
