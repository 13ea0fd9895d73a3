"""Expected outputs of the stateful rows, computed from the page views by plain loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from riverrun import STRING, Window, Windowed, session_windowed, windowed
from riverrun.partitioning import partition_for
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MINUTE_MS = 60_000
SECOND_MS = 1_000
FOREIGN_KEYS = 1_000

PageView = tuple[int, str, int, str, int, bool]
"""Number, user, event time in ms, page, duration in ms, whether it succeeded."""

Rows = list[tuple[bytes | None, bytes | None]]
"""Keys and values, sorted."""


def successful(views: Iterable[PageView]) -> Rows:
    """Keep the views that succeeded, with whole seconds."""
    return sorted(
        (user.encode(), msgspec.json.encode({"page": page, "seconds": millis // 1000, "user": user}))
        for _, user, _, page, millis, ok in views
        if ok
    )


def with_countries(views: Iterable[PageView], countries: Mapping[str, str]) -> Rows:
    """Join each view with its user's country."""
    return sorted(
        (user.encode(), msgspec.json.encode({"page": page, "country": countries[user]}))
        for _, user, _, page, _, _ in views
    )


def sessions(views: Iterable[PageView]) -> Rows:
    """Count the views of each session: those of a user that are at most a second apart."""
    open_sessions: dict[str, tuple[int, int, int]] = {}
    closed: list[tuple[str, int, int, int]] = []
    for _, user, at_ms, _, _, _ in views:
        start_ms, end_ms, count = open_sessions.get(user, (at_ms, at_ms, 0))
        if at_ms - end_ms > SECOND_MS:
            closed.append((user, start_ms, end_ms, count))
            start_ms, count = at_ms, 0
        open_sessions[user] = (start_ms, at_ms, count + 1)
    closed += [(user, *session) for user, session in open_sessions.items()]
    serialize = session_windowed(STRING).serialize
    return sorted(
        (serialize(Windowed(user, Window(start_ms, end_ms))), LONG.serialize(count))
        for user, start_ms, end_ms, count in closed
    )


def failed_near_successful(views: Iterable[PageView]) -> Rows:
    """Pair each successful view with each failed one of its user that is at most a second away."""
    recent: dict[str, list[tuple[int, str, bool]]] = {}
    pairs: Rows = []
    for _, user, at_ms, page, _, ok in views:
        near = [seen for seen in recent.get(user, []) if at_ms - seen[0] <= SECOND_MS]
        for _, other, other_ok in near:
            if other_ok != ok:
                shown = {"page": page if ok else other, "failed": other if ok else page}
                pairs.append((user.encode(), msgspec.json.encode(shown)))
        recent[user] = [*near, (at_ms, page, ok)]
    return sorted(pairs)


def last_pages(views: Iterable[PageView], countries: Mapping[str, str]) -> Rows:
    """Join each user's last view with the row of the user whose number is the view's duration modulo `FOREIGN_KEYS`."""
    last = {user: (page, f"user-{millis % FOREIGN_KEYS:06}") for _, user, _, page, millis, _ in views}
    return sorted(
        (user.encode(), msgspec.json.encode({"page": page, "country": countries[other]}))
        for user, (page, other) in last.items()
    )


def closed_windows(views: Iterable[PageView], partitions: int) -> Rows:
    """Count per user and minute, of the windows that have ended when their partition's last view comes."""
    counts: dict[tuple[str, int], int] = {}
    homes: dict[str, int] = {}
    reached_ms = [0] * partitions
    for _, user, at_ms, _, _, _ in views:
        if user not in homes:
            homes[user] = partition_for(user.encode(), partitions)
        window = user, at_ms // MINUTE_MS * MINUTE_MS
        counts[window] = counts.get(window, 0) + 1
        reached_ms[homes[user]] = at_ms
    serialize = windowed(STRING).serialize
    return sorted(
        (serialize(Windowed(user, Window(start_ms, start_ms + MINUTE_MS))), LONG.serialize(count))
        for (user, start_ms), count in counts.items()
        if start_ms + MINUTE_MS <= reached_ms[homes[user]]
    )
