"""Descriptions and plans of the instances of an application."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.records import TaskId

RUNNING = -1
"""The lag of the instance that runs a task (`Task.LATEST_OFFSET`): smaller than any other."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance's description of itself.

    Args:
        id: Names the instance; survives restarts, as long as its state directory does.
        capacity: Number of its stream threads.
        tags: Client tags, such as rack or zone.
        active: The tasks it runs at present.
        positions: Sum of the applied changelog offsets, per task of which it has local state.
        restoring: The active tasks whose state is not complete yet.
        standby: The tasks whose changelogs it follows.
    """

    id: str
    capacity: int
    tags: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[TaskId] = frozenset()
    positions: Mapping[TaskId, int] = field(default_factory=dict)
    restoring: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class AssignmentConfig:
    """Kafka Streams' settings of the same names.

    Args:
        num_standby_replicas: Copies of each state in addition to the active one.
        max_warmup_replicas: How many tasks may warm up elsewhere at a time, in addition to the standbys.
        acceptable_recovery_lag: The most changelog records that a caught-up instance may lack.
        rack_aware_assignment_tags: Tags in whose values the copies of a state should differ.
    """

    num_standby_replicas: int = 0
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    rack_aware_assignment_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one instance.

    Args:
        active: Tasks to process.
        standby: Tasks whose changelogs to follow.
        warm_up: The standbys that are warming up: once they have caught up, tasks can move to their intended places.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warm_up: frozenset[TaskId] = frozenset()


class Lags:
    """Computes how many changelog records of each task each instance lacks: `RUNNING` for the instance that runs it.

    An instance that still restores a task counts as running it only if it lacks few records; else another may suit better.

    Args:
        instances: All instances.
        acceptable: The most records that a caught-up instance may lack.
    """

    def __init__(self, instances: Iterable[Instance], acceptable: int) -> None:
        """Measure lags from the furthest position of each task."""
        everyone = list(instances)
        ends: dict[TaskId, int] = {}
        for instance in everyone:
            for task, position in instance.positions.items():
                ends[task] = max(ends.get(task, 0), position)
        self._acceptable = acceptable
        self._ends = ends
        self._known: defaultdict[TaskId, dict[str, int]] = defaultdict(dict)
        for instance in everyone:
            for task in instance.active.union(instance.positions):
                lag = ends.get(task, 0) - instance.positions.get(task, 0)
                runs = task in instance.active and (task not in instance.restoring or lag <= acceptable)
                self._known[task][instance.id] = RUNNING if runs else lag

    def __call__(self, task: TaskId, instance: str) -> int:
        """Return how many records of a task an instance lacks."""
        return self.known(task).get(instance, self._ends.get(task, 0))

    def known(self, task: TaskId) -> Mapping[str, int]:
        """Return how many records each instance lacks that has any state of a task."""
        return self._known.get(task, {})

    def is_caught_up(self, task: TaskId, instance: str) -> bool:
        """Return whether an instance could run a task without a long restore."""
        return self(task, instance) <= self._acceptable
