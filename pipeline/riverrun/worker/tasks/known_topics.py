"""The topics that running tasks depend on: which are known, and whether they change (recreated, deleted, more partitions)."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, TopicError
from riverrun.hosting.topic_ids import require_same, short_ids
from riverrun.kafka.errors import MISSING_HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Topic
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout

log = logging.getLogger(__name__)


class KnownTopics:
    """Topics to read and to write; looked up at the start, and again when they are reported to differ."""

    def __init__(self, connected: ConnectedApplication) -> None:
        self.connected = connected
        self.repartition: frozenset[str] = frozenset()
        """Full names of its repartition topics."""
        self.sources: Mapping[str, int] = {}
        """Number of partitions of each external topic that is read."""
        self._looked_at = time.monotonic()

    @property
    def application(self) -> Application:
        return self.connected.application

    @property
    def layout(self) -> Layout:
        return self.connected.layout

    def find(self) -> None:
        """Check topics, and create internal ones."""
        found = self.connected.resolved()
        found.prepare()
        self._note(found, found.partitions)

    def differ(self, sources: Mapping[str, int]) -> bool:
        """Return whether these topics and numbers of partitions differ from the known ones."""
        return sources != self.sources

    def change(self, sources: Mapping[str, int]) -> frozenset[TaskId]:
        """Read the given topics, with their numbers of partitions. Returns the tasks that change or no longer exist."""
        changed = self.connected.reading(sources)
        # Brokers are asked before anything is noted: if they do not answer, nothing has changed.
        before, after = self.layout.tasks, changed.prepare().tasks
        self._note(changed, sources)
        return frozenset(task for task in before if before[task] != after.get(task))

    def look_soon(self) -> None:
        """Make the next `look_if_due` ask brokers."""
        self._looked_at = -math.inf

    def look_if_due(self) -> Mapping[str, int] | None:
        """Return the present topics to read; None if it is not time to ask (`metadata.max.age.ms`)."""
        if time.monotonic() - self._looked_at < self.application.config.streams.metadata_max_age_ms / 1000:
            return None
        self._looked_at = time.monotonic()
        return self.connected.resolved().partitions

    def _note(self, connected: ConnectedApplication, sources: Mapping[str, int]) -> None:
        self.connected, self.sources = connected, sources
        self.repartition = frozenset(topic.name for topic in self.layout.repartition_topics)


# Records of a recreated topic that are processed in between are not lost: the next take-over compares ids.
_LOOK_SECONDS = 1.0
# Brokers describe each partition, so an application with more than this asks less often.
_PARTITIONS_PER_SECOND = 5_000
# A broker that was just started learns of topics one after another, and denies the others until then.
_MISSING_SECONDS = 5.0


class TopicWatch:
    """Compares topics with those that tasks were taken over with, in a thread: processing does not wait for brokers.

    Args:
        known: Returns the topics that running tasks depend on, with the ids that they had at the take-over.
    """

    def __init__(
        self,
        look_up: Callable[[Iterable[str]], Mapping[str, Topic]],
        known: Callable[[], Collection[tuple[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._known = known
        self._clock = clock
        self._asker: ThreadPoolExecutor | None = None
        self._asked: Future[Mapping[str, Topic]] | None = None
        self._asked_about: frozenset[str] = frozenset()
        self._look_at = 0.0
        self._missing_since: dict[str, float] = {}

    def run_once(self, application: Application, partitions: Mapping[str, int]) -> bool:
        """Compare topics if it is time. Returns whether inputs differ, so that tasks must be determined again."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                return self._compare(application, partitions, asked.result())
            except TopicError:
                raise
            except BrokerError as error:
                if not error.retriable:
                    raise
                log.debug("topics cannot be compared: %s", error)
        elif self._asked is None and self._clock() >= self._look_at and (known := self._known()):
            self._asker = self._asker or ThreadPoolExecutor(1, "topic-watch")
            self._asked_about = frozenset({topic for topic, _ in known} | partitions.keys())
            self._asked = self._asker.submit(self._look_up, self._asked_about)
        return False

    def close(self) -> None:
        """Stop asking brokers. Idempotent."""
        if self._asker is not None:
            self._asker.shutdown()
            self._asker = None

    def _compare(self, application: Application, partitions: Mapping[str, int], found: Mapping[str, Topic]) -> bool:
        now = self._clock()
        total = sum(topic.partitions for topic in found.values())
        self._look_at = now + max(_LOOK_SECONDS, total / _PARTITIONS_PER_SECOND)
        known = self._known()
        require_same(application, known, short_ids({name: topic.id for name, topic in found.items()}))
        # Tasks that were taken over meanwhile depend on topics that the answer is not about.
        awaited = self._asked_about & ({topic for topic, _ in known} | partitions.keys())
        gone = self._gone(awaited - found.keys(), now)
        matched = {topic for source in _patterns(application) for topic in source}
        # A topic that only a pattern matches may go: the application then reads fewer topics.
        if gone - matched:
            message = f"Topics that {application.id} reads or writes do not exist any more: {', '.join(sorted(gone - matched))}"
            raise TopicError(message, hint=MISSING_HINT)
        grown = {name: found[name].partitions for name in partitions.keys() & found.keys()}
        grown = {name: count for name, count in grown.items() if count != partitions[name]}
        for name, count in sorted(grown.items()):
            log.warning("topic %s has %d partitions, and had %d: the tasks change", name, count, partitions[name])
        return bool(grown or gone)

    def _gone(self, missing: Collection[str], now: float) -> set[str]:
        """Return the topics that have been missing for longer than a freshly started broker explains."""
        self._missing_since = {topic: self._missing_since.get(topic, now) for topic in missing}
        return {topic for topic, since in self._missing_since.items() if now - since >= _MISSING_SECONDS}


def _patterns(application: Application) -> Iterable[Collection[str]]:
    """Yield the topics of each source that reads the topics which a pattern matches."""
    subs = application.topology.sub_topologies()
    return (source.topics for sub in subs for source in sub.sources if source.pattern is not None)
