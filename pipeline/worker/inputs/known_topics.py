"""The topics that an application reads and writes, as far as they are known, and the tasks that come of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.hosting.application import prepare, source_partitions, with_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.records import TaskId
    from pipeline.runtime.layout import Layout


class KnownTopics:
    """The topics to read and to write; looked at once at the start, and again when they are said to differ.

    Args:
        application: Whose topics.
        admin: Asks the brokers.
    """

    def __init__(self, application: Application, admin: Admin) -> None:
        self.application = application
        """The application, as it reads the topics that are known."""
        self.layout: Layout
        self.repartition: frozenset[str] = frozenset()
        """Full names of its repartition topics."""
        self._admin = admin
        self._sources: Mapping[str, int] = {}
        self._looked_at = time.monotonic()

    def find(self) -> None:
        """Check topics, and create internal ones.

        Raises:
            TopicError: If topics are missing or do not fit.
            BrokerError: If brokers do not answer.
        """
        application = with_topics(self.application, self._admin)
        layout = prepare(application, self._admin)
        self._note(application, layout, source_partitions(application, self._admin))

    def differ(self, sources: Mapping[str, int]) -> bool:
        """Whether these topics, with so many partitions, are others than those that are known."""
        return sources != self._sources

    def change(self, sources: Mapping[str, int]) -> frozenset[TaskId]:
        """From now on these are the topics to read; gives the tasks that are others with them, or are no more.

        Raises:
            TopicError: If the tasks do not fit the internal topics that there are.
            BrokerError: If brokers do not answer; then nothing has changed.
        """
        application = replace(self.application, topology=self.application.topology.resolved(sources))
        layout = prepare(application, self._admin)
        before, after = self.layout.tasks, layout.tasks
        self._note(application, layout, sources)
        return frozenset(task for task in before if before[task] != after.get(task))

    def look_if_due(self) -> Mapping[str, int] | None:
        """The topics that there are to read now; None if it is not time to ask (`metadata.max.age.ms`).

        Raises:
            BrokerError: If brokers do not answer.
        """
        if time.monotonic() - self._looked_at < self.application.config.streams.metadata_max_age_ms / 1000:
            return None
        self._looked_at = time.monotonic()
        return source_partitions(self.application, self._admin)

    def _note(self, application: Application, layout: Layout, sources: Mapping[str, int]) -> None:
        self.application, self.layout, self._sources = application, layout, sources
        self.repartition = frozenset(topic.name for topic in layout.repartition_topics)
