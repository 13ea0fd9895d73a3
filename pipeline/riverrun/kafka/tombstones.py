"""Copies of compacted topics that follow them: when one may lack deletions, as brokers have removed their tombstones.

Brokers remove a tombstone `delete.retention.ms` after they have cleaned it, and with it all that says that its row is gone. A
copy that continues from a position then keeps the row. So each copy keeps, next to its position, the time at which it
was known to be whole: it lacks no tombstone that brokers keep until `delete.retention.ms` later. This module decides
whether that is long enough, for all kinds of copies.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.records import Whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)

# Topics that are not compacted keep their tombstones like any record.
FOREVER_MS = 2**63 - 1
# Each topic whose settings may not be read causes one warning.
_UNREADABLE: set[str] = set()
# From this `min.compaction.lag.ms` on, brokers do not clean a topic.
_NEVER_MS = 2**62
# Less than 1, as clocks of brokers differ, and those of machines drift.
_SHARE = 0.9

# A copy that continues without a longer break misses no tombstone, however short `delete.retention.ms` is: brokers clean a
# log twice before they remove one, with a pause of 15 s if there is nothing else to do (`log.cleaner.backoff.ms`).
_SHORTEST_MS = 10_000


def kept_deletions_ms(admin: Admin, topics: Iterable[str]) -> int:
    """Return how long all of these topics keep tombstones, ms: the shortest `delete.retention.ms` of the compacted ones."""
    names = set(topics)
    configs = admin.topic_configs(names)
    if unknown := names - configs.keys() - _UNREADABLE:
        _UNREADABLE.update(unknown)
        what = ", ".join(sorted(unknown))
        log.warning("settings of %s cannot be read: if they are compacted, missing deletions are not noticed", what)
    return min(map(_kept_ms, configs.values()), default=FOREVER_MS)


def _kept_ms(config: Mapping[str, str]) -> int:
    is_cleaned = "compact" in config["cleanup.policy"] and int(config.get("min.compaction.lag.ms", 0)) < _NEVER_MS
    return int(config["delete.retention.ms"]) if is_cleaned else FOREVER_MS


def whole_now(admin: Admin, topics: Iterable[str]) -> Whole:
    """Return what makes a copy whole that is empty now, or that reads on to ends that are asked for after this."""
    kept_ms = kept_deletions_ms(admin, topics)
    # Without deletions to miss, brokers are not asked for their time: that would write a record.
    return Whole(0 if kept_ms == FOREVER_MS else admin.clock.now_ms(), kept_ms)


def is_recent(whole: Whole | None, now: Whole) -> bool:
    """Return whether brokers have removed no tombstone since a copy was whole; None if that time is unknown."""
    # The setting may have changed in between: the lower one of both times counts.
    kept_ms = now.kept_ms if whole is None else min(whole.kept_ms, now.kept_ms)
    if whole is None or kept_ms == FOREVER_MS:
        return kept_ms == FOREVER_MS
    # Brokers' clocks may jump by the rest of the share, also backwards.
    return -(1 - _SHARE) * kept_ms <= now.time_ms - whole.time_ms < _SHARE * kept_ms


def since(whole: Whole | None, now: Whole) -> Whole:
    """Return when a copy was whole that lacks no deletions (`why_incomplete`)."""
    return whole if whole is not None and is_recent(whole, now) else now


def oldest(wholes: Iterable[Whole | None]) -> Whole | None:
    """Return when several copies were whole; None if that is unknown of one."""
    found = list(wholes)
    known = [each for each in found if each is not None and each.kept_ms != FOREVER_MS]
    if None in found:
        return None
    return (
        Whole(min(each.time_ms for each in known), min(each.kept_ms for each in known))
        if known
        else Whole(0, FOREVER_MS)
    )


def require_recent(admin: Admin, whole: Whole | None) -> None:
    """Make sure that a copy lacks no deletion among the records that it has just read.

    To be called before their position is kept: from then on nothing shows that it was reached too late.
    """
    if whole is None or whole.kept_ms == FOREVER_MS:
        return
    kept_ms = max(whole.kept_ms, _SHORTEST_MS)
    # Reckoned, not asked for: an error would lose what was read.
    now_ms = admin.clock.reckoned_ms()
    if not is_recent(Whole(whole.time_ms, kept_ms), Whole(now_ms, kept_ms)):
        message = f"Reading took longer than brokers keep deletions: {whole.kept_ms} ms (delete.retention.ms)"
        raise RangeError(message, hint="Raise delete.retention.ms of the topics.")


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Why a copy may lack deletions.

    Args:
        text: The reason.
        is_doubt: Whether the only reason is that clocks differ.
    """

    text: str
    is_doubt: bool = False

    def __str__(self) -> str:
        return self.text

    def hint(self, otherwise: str) -> str:
        """Return what helps: to set clocks, or what making the copy again takes."""
        return "Set the clocks of the brokers and of this host, and try again." if self.is_doubt else otherwise


def why_incomplete(
    admin: Admin, whole: Whole | None, now: Whole, positions: Mapping[TopicPartition, int]
) -> Incomplete | None:
    """Return why a copy may lack deletions, also once it has read all that is there; None if it will not.

    `positions` are those at which it continues, in the partitions of which it has rows.
    """
    kept_ms = now.kept_ms if whole is None else min(whole.kept_ms, now.kept_ms)
    if not positions or kept_ms == FOREVER_MS:
        return None
    # `whole_now` does not ask for the time if brokers clean nothing now; they may have done so until yesterday.
    now_ms = admin.clock.now_ms() if now.kept_ms == FOREVER_MS else now.time_ms
    # A clock that was set back while a copy was away makes it look younger. The host's clock is another witness.
    apart_ms = admin.clock.apart_ms()
    differ = f"the clocks of the brokers and of this host differ by {apart_ms // 1000} s"
    is_doubtful = apart_ms > max(_SHORTEST_MS, (1 - _SHARE) * kept_ms)
    seems_recent = is_recent(whole, Whole(now_ms, kept_ms))
    if seems_recent and not is_doubtful:
        return None
    written = admin.written_offsets(positions)
    # The last offset of a log is never cleaned. It is often the marker of the transaction that wrote the record before.
    behind = sorted(tp for tp, offset in positions.items() if written[tp] - offset > 1)
    if not behind:
        return None
    named = ", ".join(map(str, behind))
    if seems_recent:
        return Incomplete(f"{differ}, so deletions of {named} may be missing", is_doubt=True)
    since = "since an unknown time" if whole is None else f"since {_shown(whole.time_ms)}"
    if is_doubtful:
        since += f" ({differ})"
    return Incomplete(
        f"nothing is known of {named} {since}, and brokers keep deletions for {kept_ms} ms"
        " (delete.retention.ms): deletions may be missing"
    )


@dataclass(slots=True)
class Following:
    """Finds out at which time a copy that reads on was whole last.

    It asks for nothing itself: callers pass on the ends of partitions, as they were after a time, and call `require_recent`
    whenever something was read. `whole` is None if the time is unknown.
    """

    whole: Whole | None
    _asked: tuple[Whole, Mapping[TopicPartition, int]] | None = None

    def look(self, now: Whole, ends: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]) -> None:
        """Note how far it has read. `ends` were asked for after the time `now`; missing `positions` have not been read."""
        # In two looks: the time is one before the ends were asked for, so it does not matter when a stopped process continues.
        if self._asked is None:
            self._asked = now, dict(ends)
        if self.reach(positions):
            self._asked = now, dict(ends)

    def reach(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Note how far it has read since the last look. Return whether it has reached the ends that were found then."""
        if self._asked is None:
            return False
        then, wanted = self._asked
        has_reached = all(max(0, positions.get(tp, 0)) >= end for tp, end in wanted.items())
        if has_reached:
            self.whole = then
        return has_reached


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
