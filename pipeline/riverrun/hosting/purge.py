"""Deletes records of internal topics that tasks no longer need; nothing else deletes them.

These are processed records of repartition topics (KIP-811), and changelog records that their stores have forgotten.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.state.suppliers import ADDITIONAL_RETENTION_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)
# Event time has to advance by this much before brokers are asked again which records are old.
_STEP_MS = 3_600_000


def old_before(first_kept_ms: int) -> int:
    """Return the time before which records of a changelog are not needed, if its store has forgotten all before a time (ms)."""
    return first_kept_ms - ADDITIONAL_RETENTION_MS


class Purge:
    """Deletes records at intervals (`repartition.purge.interval.ms`)."""

    def __init__(self, admin: Admin, interval_ms: int = 0) -> None:
        self._admin = admin
        self._interval_ms = interval_ms
        self._last_ms: int | None = None
        self._deleted: dict[TopicPartition, int] = {}
        self._asked_ms: dict[TopicPartition, int] = {}
        self._thread: threading.Thread | None = None

    def run_if_due(self, now_ms: int, tasks: Collection[ActiveTask], repartition_topics: Collection[str]) -> None:
        """Start a deletion in the background, if one is due and the last one has ended. Failures are only logged."""
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

    def run(self, tasks: Collection[ActiveTask], repartition_topics: Collection[str]) -> None:
        """Delete records now, and wait. Arguments are those of `run_if_due`."""
        self.delete(*self._needless(tasks, repartition_topics))

    def _needless(
        self, tasks: Collection[ActiveTask], repartition_topics: Collection[str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return, per partition, the offset before which all is processed, and the time (ms) before which all is forgotten."""
        processed = {
            tp: offset
            for active in tasks
            for tp, offset in active.committed_offsets.items()
            if tp.topic in repartition_topics and offset > self._deleted.get(tp, 0)
        }
        old = {
            tp: old_before(first_kept_ms)
            for active in tasks
            for tp, first_kept_ms in active.task.forgotten.items()
            if old_before(first_kept_ms) >= self._asked_ms.get(tp, 0) + _STEP_MS
        }
        return processed, old

    def _try(self, processed: Mapping[TopicPartition, int], old: Mapping[TopicPartition, int]) -> None:
        try:
            self.delete(processed, old)
        except StreamsError as error:
            log.warning("cannot delete processed records of internal topics: %s", error.message)

    def delete(self, processed: Mapping[TopicPartition, int], old: Mapping[TopicPartition, int]) -> None:
        """Delete processed records, and those before a time."""
        before = dict(processed)
        for tp, time_ms in old.items():
            # Brokers may find a transaction marker, which has the time of their clock. Then less is deleted than could be.
            offset = self._admin.offsets_for_time([tp], time_ms)[tp]
            if offset > self._deleted.get(tp, 0):
                before[tp] = offset
        if before:
            self._admin.delete_records(before)
        self._deleted |= before
        self._asked_ms |= old
