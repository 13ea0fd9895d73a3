"""Finds the stretch of event time in which each topic changes, if an interval of an application's tables is computed again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from riverrun.releases.scope import LAST_MS, moment_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.project.graph import Member, ProjectGraph, Spread


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of event time.

    Args:
        start_ms: First event time, ms since the epoch.
        end_ms: End of the event times (exclusive), ms since the epoch.

    >>> print(Stretch(0, 60_000))
    from the first record to 1970-01-01T00:01:00.000+00:00
    >>> from riverrun.project.graph import Spread
    >>> print(Stretch(60_000, 120_000).spread(Spread(30_000, None)))
    from 1970-01-01T00:00:30.000+00:00 on
    """

    start_ms: int
    end_ms: int

    def __str__(self) -> str:
        start = f"from {self.start}" if self.start_ms else "from the first record"
        return f"{start} on" if self.end_ms == LAST_MS else f"{start} to {self.end}"

    @property
    def start(self) -> str:
        """Return its start as text."""
        return moment_text(self.start_ms)

    @property
    def end(self) -> str:
        """Return its end as text."""
        return moment_text(self.end_ms)

    def spread(self, spread: Spread) -> Stretch:
        """Return the stretch in which results change with the records of this one."""
        start_ms = 0 if spread.before_ms is None else max(0, self.start_ms - spread.before_ms)
        end_ms = LAST_MS if spread.after_ms is None else min(LAST_MS, self.end_ms + spread.after_ms)
        return Stretch(min(start_ms, self.start_ms), end_ms)

    def __or__(self, other: Stretch) -> Stretch:
        """Return the stretch that covers both."""
        return Stretch(min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms))


_EVER = Stretch(0, LAST_MS)


def stretches_of(graph: ProjectGraph, app: Member, topics: Iterable[str], first: Stretch) -> Mapping[str, Stretch]:
    """Return by topic the stretch in which it changes.

    Args:
        graph: The graph of the project.
        app: The application whose tables are computed again.
        topics: These tables.
        first: The interval.
    """
    found = dict.fromkeys(topics, first)
    # In a cycle each round reaches further: what changes after more rounds than there are members does so without end.
    for number in count():
        spread = dict(found)
        for topic, more in _spread(graph, app, found):
            spread[topic] = spread.get(topic, more) | more
        if spread == found:
            break
        is_endless = number > len(graph.members)
        found = {t: _EVER if is_endless and found.get(t) != each else each for t, each in spread.items()}
    return found


def _spread(graph: ProjectGraph, app: Member, found: Mapping[str, Stretch]) -> Iterator[tuple[str, Stretch]]:
    for edge in graph.reads:
        if edge.topic not in found or edge.reader == app:
            continue
        for flow in (edge.rows, edge.records):
            for topic, spread in flow.spreads.items():
                yield topic, found[edge.topic].spread(spread)
