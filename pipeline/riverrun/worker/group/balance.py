"""Computes how many tasks of each sub-topology each place runs: as even as capacities allow, with as few moves as possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def gain(from_count: int, from_capacity: int, to_count: int, to_capacity: int) -> int:
    """Return the gain of moving one task: positive if both counts come closer to their shares, 0 if it makes no difference.

    By the method of Sainte-Laguë: the sum of count² / capacity becomes smaller.
    """
    return (2 * from_count - 1) * to_capacity - (2 * to_count + 1) * from_capacity


class Balance:
    """Numbers of tasks, by sub-topology and by place.

    Evens out first all tasks, then the tasks that are counted here, then those of each sub-topology. For the last, tasks of two
    sub-topologies swap places, so that no sub-topology ends up entirely on one instance.

    Args:
        capacity: By place that may run tasks; other places receive none.
        load: How many other tasks each place has already.
    """

    def __init__(self, capacity: Mapping[str, int], load: Mapping[str, int]) -> None:
        self._capacity = dict(sorted(capacity.items()))
        self._total = Counter(load)
        self._here: Counter[str] = Counter()
        self.counts: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def add(self, sub_topology: int, name: str) -> None:
        """Count a task at its present place."""
        self._change(sub_topology, name, 1)

    def add_anywhere(self, sub_topology: int) -> None:
        """Count a task at the least loaded place."""
        levels = (self._total, self._here, self.counts[sub_topology])
        self.add(sub_topology, min(self._capacity, key=lambda name: [self._next(level, name) for level in levels]))

    def even_out(self) -> None:
        """Move tasks until no move brings a gain."""
        while self._even_totals() or self._even_these() or self._even_sub_topologies():
            pass

    def _even_totals(self) -> bool:
        source, target = self._extremes(self._total, [name for name in self._capacity if self._here[name]])
        if self._gain(self._total, source, target) <= 0:
            return False
        self._move_any(source, target)
        return True

    def _even_these(self) -> bool:
        source, target = self._extremes(self._here, self._capacity)
        if self._gain(self._here, source, target) <= 0 or self._gain(self._total, source, target) < 0:
            return False
        self._move_any(source, target)
        return True

    def _even_sub_topologies(self) -> bool:
        return sum(map(self._even_sub_topology, sorted(self.counts))) > 0

    def _even_sub_topology(self, sub_topology: int) -> bool:
        counts = self.counts[sub_topology]
        source, target = self._extremes(counts, self._capacity)
        gained = self._gain(counts, source, target)
        if gained <= 0:
            return False
        if self._gain(self._total, source, target) >= 0 and self._gain(self._here, source, target) >= 0:
            self._move(sub_topology, source, target)
            return True
        others = [sub for sub in sorted(self.counts) if sub != sub_topology and self.counts[sub][target]]
        back = max(others, key=lambda sub: self._gain(self.counts[sub], target, source), default=None)
        if back is None or gained + self._gain(self.counts[back], target, source) <= 0:
            return False
        self._move(sub_topology, source, target)
        self._move(back, target, source)
        return True

    def _extremes(self, level: Counter[str], sources: Iterable[str]) -> tuple[str, str]:
        """Return the place among `sources` with most for its capacity, and the place among all with least."""
        everybody = self._capacity
        most = max(sources, key=lambda name: (2 * level[name] - 1) / everybody[name], default=next(iter(everybody)))
        return most, min(everybody, key=lambda name: self._next(level, name))

    def _next(self, level: Counter[str], name: str) -> float:
        return (2 * level[name] + 1) / self._capacity[name]

    def _gain(self, level: Counter[str], source: str, target: str) -> int:
        return gain(level[source], self._capacity[source], level[target], self._capacity[target])

    def _move_any(self, source: str, target: str) -> None:
        """Move a task of the sub-topology that is spread worst between the two places."""
        there = [sub for sub in sorted(self.counts) if self.counts[sub][source]]
        self._move(max(there, key=lambda sub: self._gain(self.counts[sub], source, target)), source, target)

    def _move(self, sub_topology: int, source: str, target: str) -> None:
        self._change(sub_topology, source, -1)
        self._change(sub_topology, target, 1)

    def _change(self, sub_topology: int, name: str, by: int) -> None:
        for level in (self._total, self._here, self.counts[sub_topology]):
            level[name] += by
