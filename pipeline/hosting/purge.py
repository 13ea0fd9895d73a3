"""Deletes what has been processed from repartition topics, which nothing else ever deletes (KIP-811)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.kafka.admin import Admin
    from pipeline.records import TopicPartition

log = logging.getLogger(__name__)


class RepartitionPurge:
    """Deletes records now and then, in the background; that it fails is no more than logged (`TaskManager`).

    Args:
        admin: Asks the brokers.
        interval_ms: How often (`repartition.purge.interval.ms`).
    """

    def __init__(self, admin: Admin, interval_ms: int) -> None:
        """Nothing is deleted before the first interval has passed."""
        self._admin = admin
        self._interval_ms = interval_ms
        self._last_ms: int | None = None
        self._deleted: dict[TopicPartition, int] = {}
        self._thread: threading.Thread | None = None

    def run_if_due(self, now_ms: int, committed: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Delete what is committed, if it is time, and the last time has come to an end.

        Args:
            now_ms: What time it is.
            committed: Asked only then: per repartition topic's partition the committed offset.
        """
        if self._last_ms is None:
            self._last_ms = now_ms
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or now_ms - self._last_ms < self._interval_ms:
            return
        self._last_ms = now_ms
        before = {tp: offset for tp, offset in committed().items() if offset > self._deleted.get(tp, 0)}
        if before:
            self._thread = threading.Thread(target=self._delete, args=(before,), name="purge", daemon=True)
            self._thread.start()

    def _delete(self, before: Mapping[TopicPartition, int]) -> None:
        try:
            self._admin.delete_records(before)
        except StreamsError as error:
            log.warning("processed records of repartition topics are not deleted: %s", error.message)
        else:
            self._deleted |= before
