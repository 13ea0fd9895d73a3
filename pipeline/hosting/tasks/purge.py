"""Deletes what is needed no more of an application's own topics: nothing else ever deletes it.

That is what has been processed of repartition topics (KIP-811), and of changelogs what their stores have forgotten.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError
from pipeline.state.changelog import ADDITIONAL_RETENTION_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pipeline.hosting.tasks.owned_task import OwnedTask
    from pipeline.kafka.admin import Admin
    from pipeline.records import TopicPartition

log = logging.getLogger(__name__)
_STEP_MS = 3_600_000
"""Brokers are asked again what is old when event time has gone on by so much."""


class Purge:
    """Deletes records now and then.

    Args:
        admin: Asks the brokers.
        interval_ms: How often (`repartition.purge.interval.ms`).
    """

    def __init__(self, admin: Admin, interval_ms: int = 0) -> None:
        self._admin = admin
        self._interval_ms = interval_ms
        self._last_ms: int | None = None
        self._deleted: dict[TopicPartition, int] = {}
        self._asked_ms: dict[TopicPartition, int] = {}
        self._thread: threading.Thread | None = None

    def run_if_due(self, now_ms: int, tasks: Collection[OwnedTask], repartition_topics: Collection[str]) -> None:
        """Delete in the background, if it is time, and the last time has come to an end. That it fails is no more than logged.

        Args:
            now_ms: What time it is.
            tasks: Those that run here.
            repartition_topics: Full names of the application's repartition topics.
        """
        if self._last_ms is None:
            self._last_ms = now_ms
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or now_ms - self._last_ms < self._interval_ms:
            return
        self._last_ms = now_ms
        processed, old = self._needless(tasks, repartition_topics)
        if processed or old:
            self._thread = threading.Thread(target=self._try, args=(processed, old), name="purge", daemon=True)
            self._thread.start()

    def run(self, tasks: Collection[OwnedTask], repartition_topics: Collection[str]) -> None:
        """Delete at once. Arguments as of `run_if_due`.

        Raises:
            StreamsError: If brokers refuse, or do not answer.
        """
        self._delete(*self._needless(tasks, repartition_topics))

    def _needless(
        self, tasks: Collection[OwnedTask], repartition_topics: Collection[str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """By partition the offset before which everything is processed, and the time (ms) before which it is forgotten."""
        processed = {
            tp: offset
            for owned in tasks
            for tp, offset in owned.committed_offsets.items()
            if tp.topic in repartition_topics and offset > self._deleted.get(tp, 0)
        }
        old = {
            tp: first_kept_ms - ADDITIONAL_RETENTION_MS
            for owned in tasks
            for tp, first_kept_ms in owned.task.forgotten.items()
            if first_kept_ms - ADDITIONAL_RETENTION_MS >= self._asked_ms.get(tp, 0) + _STEP_MS
        }
        return processed, old

    def _try(self, processed: Mapping[TopicPartition, int], old: Mapping[TopicPartition, int]) -> None:
        try:
            self._delete(processed, old)
        except StreamsError as error:
            log.warning("what is needed no more of the application's own topics is not deleted: %s", error.message)

    def _delete(self, processed: Mapping[TopicPartition, int], old: Mapping[TopicPartition, int]) -> None:
        """Delete up to a time. Brokers may find a transaction's end, with their clock's time: then less is deleted."""
        before = dict(processed)
        for tp, time_ms in old.items():
            offset = self._admin.offsets_for_time([tp], time_ms)[tp]
            if offset > self._deleted.get(tp, 0):
                before[tp] = offset
        if before:
            self._admin.delete_records(before)
        self._deleted |= before
        self._asked_ms |= old
