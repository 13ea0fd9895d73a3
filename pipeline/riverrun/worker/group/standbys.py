"""Places copies of tasks' states on other instances, in other racks if possible, and as even as capacities allow."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from riverrun.worker.group.balance import gain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from riverrun.records import TaskId
    from riverrun.worker.group.instances import AssignmentConfig, Instance, Lags


def standbys(
    instances: Collection[Instance], owners: Mapping[TaskId, str], lags: Lags, config: AssignmentConfig
) -> dict[TaskId, set[str]]:
    """Return the instances that follow the changelogs of each task; present followers continue as far as balance allows.

    Args:
        instances: All instances.
        owners: The instance that is to run each stateful task.
        lags: Changelog records that each instance lacks.
        config: Settings.
    """
    copies = _Copies(instances, owners, config.rack_aware_assignment_tags)
    for _ in range(config.num_standby_replicas):
        for task in sorted(owners):
            copies.add(task, lags)
    copies.even_out(lags)
    return copies.of


class _Copies:
    def __init__(self, instances: Iterable[Instance], owners: Mapping[TaskId, str], tags: tuple[str, ...]) -> None:
        self.of: dict[TaskId, set[str]] = {task: set() for task in sorted(owners)}
        self._instances = {instance.id: instance for instance in instances}
        self._owners = owners
        self._tags = tags
        self._load = Counter(owners.values())

    def add(self, task: TaskId, lags: Lags) -> None:
        others = self._instances.keys() - self._holders(task)
        if not others:
            return

        def badness(name: str) -> tuple[int, bool, bool, float, str]:
            instance = self._instances[name]
            return (
                self._shared_tags(name, self._holders(task)),
                task not in instance.standby,
                not lags.is_caught_up(task, name),
                self._load[name] / instance.capacity,
                name,
            )

        chosen = min(others, key=badness)
        self.of[task].add(chosen)
        self._load[chosen] += 1

    def even_out(self, lags: Lags) -> None:
        """Move copies until no move brings a gain."""
        while self._move_one(lags):
            pass

    def _move_one(self, lags: Lags) -> bool:
        by_load = sorted(self._instances, key=lambda name: (self._load[name] / self._instances[name].capacity, name))
        for source in reversed(by_load):
            for target in by_load:
                if self._gain(source, target) <= 0:
                    break
                movable = [
                    task for task, names in self.of.items() if source in names and self._may_move(task, source, target)
                ]
                if movable:
                    self._move(min(movable, key=lambda task: (lags(task, target), task)), source, target)
                    return True
        return False

    def _gain(self, source: str, target: str) -> int:
        capacities = self._instances[source].capacity, self._instances[target].capacity
        return gain(self._load[source], capacities[0], self._load[target], capacities[1])

    def _may_move(self, task: TaskId, source: str, target: str) -> bool:
        holders = self._holders(task)
        others = holders - {source}
        return target not in holders and self._shared_tags(target, others) <= self._shared_tags(source, others)

    def _move(self, task: TaskId, source: str, target: str) -> None:
        self.of[task] ^= {source, target}
        self._load[source] -= 1
        self._load[target] += 1

    def _holders(self, task: TaskId) -> set[str]:
        return self.of[task] | {self._owners[task]}

    def _shared_tags(self, name: str, holders: Iterable[str]) -> int:
        """Count the tags whose values an instance shares with the others; a missing tag has the value None."""
        own = self._instances[name].tags
        return sum(own.get(tag) == self._instances[other].tags.get(tag) for other in holders for tag in self._tags)
