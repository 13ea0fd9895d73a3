"""Finds out whether the target of a follower may lack deletions that retention has removed from a compacted topic."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.kafka.tombstones import FOREVER_MS, Following, oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import OffsetRange, Whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.tombstones import Incomplete
    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)

REMOVE, REFUSE, IGNORE = "remove", "refuse", "ignore"
"""What to do with targets that may lack deletions (`MissedDeletions`)."""


class MissedDeletions:
    """Knows whether a follower's target may lack deletions.

    The time at which the target was whole is the metadata of the offsets that the follower's group commits as a copy.

    Args:
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
        """Return the partitions that have to be read again, with their present ranges; `starts` are the target's offsets."""
        admin, now = self._admin, whole_now(self._admin, [self._topic])
        self._kept_ms = now.kept_ms
        first, last = admin.log_starts(starts), admin.end_offsets(starts)
        wholes: list[Whole | None] = []
        again: dict[TopicPartition, OffsetRange] = {}
        noted = admin.committed(self._group, starts)
        for tp, start in starts.items():
            # A copy with a higher offset is of a target that has been taken back since: its time no longer holds.
            known = Whole.decode(noted[tp].metadata) if tp in noted and noted[tp].offset <= start else None
            reason = why_incomplete(admin, known, now, {tp: start} if start > first[tp] else {})
            if reason is not None and self._has_to_read_again(tp, reason, first[tp]):
                again[tp] = OffsetRange(first[tp], last[tp])
            wholes.append(now if reason is not None else since(known, now))
        self._following = Following(oldest(wholes))
        return again

    def _has_to_read_again(self, tp: TopicPartition, lacks: Incomplete, first: int) -> bool:
        reason = str(lacks)
        is_aged = self._lost_deletions == REMOVE and first > 0
        if is_aged:
            reason += (
                f". {tp} begins at offset {first}: rows of records that are gone because of their age would go, too"
            )
        if self._lost_deletions == REFUSE or is_aged:
            message = f"{self._target} may hold rows that have been deleted: {reason}"
            raise RangeError(message, hint=lacks.hint(self._hint))
        log.warning("%s may hold rows that have been deleted: %s", self._target, reason)
        return self._lost_deletions == REMOVE

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now."""
        if self._kept_ms != FOREVER_MS and self._lost_deletions != IGNORE:
            require_recent(self._admin, self._following.whole)

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the follower has read."""
        if self._kept_ms != FOREVER_MS and reached:
            # The time before the ends: who has reached these ends has everything up to this time.
            now = Whole(self._admin.clock.noted_ms(), self._kept_ms)
            self._following.look(now, self._admin.end_offsets(reached), reached)

    def note(self) -> str:
        """Return the time at which the target was whole, as metadata of its offsets; empty if none is needed."""
        whole = self._following.whole
        return "" if whole is None or self._kept_ms == FOREVER_MS else whole.encode()
