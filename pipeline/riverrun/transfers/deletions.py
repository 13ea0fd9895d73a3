"""Deletions that a follower of a compacted topic may have missed, because brokers have removed their tombstones since."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.kafka.tombstones import FOREVER_MS, Following, oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import OffsetRange, Whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)

REMOVE, REFUSE, IGNORE = "remove", "refuse", "ignore"


class MissedDeletions:
    """Knows whether a follower's target may lack deletions.

    The time at which the target was whole is in the metadata of the offsets that the follower's group has a copy of.

    Args:
        admin: Asks the brokers.
        group: The group.
        topic: The topic.
        target: The follower and its target, for messages.
        lost_deletions: What to do if the target may lack deletions: `remove` what the topic no longer has, `refuse` to
            follow, or `ignore` it.
        hint: What to do if it is refused.
    """

    def __init__(self, admin: Admin, group: str, topic: str, *, target: str, lost_deletions: str, hint: str) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._target = target
        self._lost_deletions = lost_deletions
        self._hint = hint
        self._following = Following(None)
        self._kept_ms = FOREVER_MS

    def to_read_again(self, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return which partitions have to be read again, with the first and the last offset.

        Args:
            starts: Behind the last record in the target, by partition.

        Raises:
            RangeError: If the target may lack deletions, and that is to be refused.
            BrokerError: If brokers do not answer.
        """
        admin, now = self._admin, whole_now(self._admin, [self._topic])
        self._kept_ms = now.kept_ms
        if now.kept_ms == FOREVER_MS:
            return {}
        first, last = admin.beginning_offsets(starts), admin.end_offsets(starts)
        wholes: list[Whole | None] = []
        again: dict[TopicPartition, OffsetRange] = {}
        noted = admin.committed(self._group, starts)
        for tp, start in starts.items():
            known = Whole.decode(noted[tp].metadata) if tp in noted and noted[tp].offset <= start else None
            reason = why_incomplete(admin, known, now, {tp: start} if start > first[tp] else {})
            if reason is not None and self._has_to_read_again(reason):
                again[tp] = OffsetRange(first[tp], last[tp])
            wholes.append(now if reason is not None else since(known, now))
        self._following = Following(oldest(wholes))
        return again

    def _has_to_read_again(self, reason: str) -> bool:
        if self._lost_deletions == REFUSE:
            message = f"{self._target} may hold rows that have been deleted: {reason}"
            raise RangeError(message, hint=self._hint)
        log.warning("%s may hold rows that have been deleted: %s", self._target, reason)
        return self._lost_deletions == REMOVE

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now.

        Raises:
            RangeError: If brokers may have removed tombstones meanwhile.
            BrokerError: If brokers do not answer.
        """
        if self._kept_ms != FOREVER_MS and self._lost_deletions != IGNORE:
            require_recent(self._admin, self._following.whole)

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the follower has read.

        Raises:
            BrokerError: If brokers do not answer.
        """
        if self._kept_ms != FOREVER_MS and reached:
            now = Whole(self._admin.clock.now_ms(), self._kept_ms)
            self._following.look(now, self._admin.end_offsets(reached), reached)

    def note(self) -> str:
        """Return when the target was whole, as metadata of its offsets; empty where none is needed."""
        whole = self._following.whole
        return "" if whole is None or self._kept_ms == FOREVER_MS else whole.encode()
