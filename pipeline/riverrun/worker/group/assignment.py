"""Assigns tasks by plain arithmetic on what the instances of an application report of themselves.

The rules are those of Kafka Streams' `HighAvailabilityTaskAssignor`. First they determine the intended places of tasks and
standbys, as even as capacities allow. Then an active task goes only to an instance whose state is caught up, while the
intended instance warms up as a standby. Standbys follow the same rule. Unlike in Kafka Streams, which distributes all tasks
from scratch, tasks stay where they are as far as balance allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.worker.group.instances import RUNNING, Instance, Lags, Plan
from riverrun.worker.group.spreading import spread
from riverrun.worker.group.standbys import standbys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from riverrun.records import TaskId
    from riverrun.worker.group.instances import AssignmentConfig


def assign(instances: Collection[Instance], tasks: Mapping[TaskId, bool], config: AssignmentConfig) -> dict[str, Plan]:
    """Assign all tasks.

    Args:
        instances: All instances; at least one.
        tasks: All tasks, and whether each has state.
        config: Settings.

    Returns:
        A plan per instance id. Each task is active exactly once.
    """
    capacity = {instance.id: instance.capacity for instance in instances}
    lags = Lags(instances, config.acceptable_recovery_lag)
    stateful = [task for task, has_state in tasks.items() if has_state]
    stateless = tasks.keys() - set(stateful)
    meant = spread(stateful, capacity, {task: lags.known(task) for task in stateful}, {})
    now = _Present(meant, standbys(instances, meant, lags, config), capacity, lags, config.max_warmup_replicas)
    now.move_active()
    now.move_standbys()
    running = {task: {i.id: RUNNING for i in instances if task in i.active} for task in stateless}
    active = now.active | spread(stateless, capacity, running, Counter(meant.values()))
    return {
        name: Plan(
            frozenset(task for task, owner in active.items() if owner == name),
            frozenset(task for task, names in now.copies.items() if name in names),
            frozenset(task for task, names in now.warm_ups.items() if name in names),
        )
        for name in sorted(capacity)
    }


class _Present:
    """The present places of stateful tasks: the intended instances, or else those with more of the tasks' state.

    Args:
        meant: The intended instance of each active task.
        copies: The intended instances of each task's standbys.
        capacity: Capacity of each instance.
        lags: Changelog records that each instance lacks.
        spare: How many warm-up copies there may be in addition.
    """

    def __init__(
        self,
        meant: Mapping[TaskId, str],
        copies: Mapping[TaskId, set[str]],
        capacity: Mapping[str, int],
        lags: Lags,
        spare: int,
    ) -> None:
        self.active = dict(meant)
        self.copies = {task: set(names) for task, names in copies.items()}
        self.warm_ups: dict[TaskId, set[str]] = {task: set() for task in meant}
        self._capacity = capacity
        self._lags = lags
        self._spare = spare
        self._load = Counter([*meant.values(), *(name for names in copies.values() for name in names)])

    def move_active(self) -> None:
        """Assign active tasks to caught-up instances; the intended instance follows as a standby until it has caught up."""
        for task, target in self._waiting((task, name) for task, name in self.active.items()):
            chosen = self._readiest(task, self._capacity)
            self.active[task] = chosen
            self._load[chosen] += 1
            self._load[target] -= 1
            if chosen in self.copies[task]:
                self.copies[task].remove(chosen)
                self._load[chosen] -= 1
                self._warm_up(task, target)
            elif self._spare > 0:
                self._spare -= 1
                self._warm_up(task, target)

    def move_standbys(self) -> None:
        """Assign standbys to caught-up instances that have no part in the task, if there are any; the others warm up."""
        planned = [(task, name) for task, names in self.copies.items() for name in names - self.warm_ups[task]]
        for task, target in self._waiting(planned):
            idle = self._capacity.keys() - self.copies[task] - {self.active[task]}
            ahead = [name for name in idle if self._lags(task, name) < self._lags(task, target)]
            if not ahead:
                continue
            chosen = self._readiest(task, ahead)
            self.copies[task].add(chosen)
            self._load[chosen] += 1
            if self._spare > 0:
                self._spare -= 1
                self.warm_ups[task].add(target)
            else:
                self.copies[task].remove(target)
                self._load[target] -= 1

    def _waiting(self, planned: Iterable[tuple[TaskId, str]]) -> list[tuple[TaskId, str]]:
        """Find the tasks for which another instance is better prepared, beginning with those that lack least."""
        found = [
            (task, name)
            for task, name in planned
            if not self._lags.is_caught_up(task, name)
            and min(self._lags.known(task).values(), default=0) < self._lags(task, name)
        ]
        return sorted(found, key=lambda place: (self._lags(*place), place))

    def _readiest(self, task: TaskId, names: Iterable[str]) -> str:
        """Return the best instance for a task: the one that runs it, the least busy caught-up one, or that with most state."""

        def badness(name: str) -> tuple[int, float, str]:
            lag = self._lags(task, name)
            missing = 0 if self._lags.is_caught_up(task, name) and lag != RUNNING else lag
            return missing, self._load[name] / self._capacity[name], name

        return min(names, key=badness)

    def _warm_up(self, task: TaskId, name: str) -> None:
        self.copies[task].add(name)
        self.warm_ups[task].add(name)
        self._load[name] += 1


def withhold(plans: Mapping[str, Plan], instances: Collection[Instance]) -> dict[str, Plan]:
    """Return the plans without active tasks that another instance still runs (cooperative rebalancing).

    The instance that runs such a task sees that its plan no longer has it, commits, closes it and reports that. Only then does
    the next instance receive it. Until then the next instance keeps following its changelog, if it does.
    """
    runs = {task: instance.id for instance in instances for task in instance.active}
    possible = {}
    for instance in instances:
        plan = plans[instance.id]
        early = frozenset(task for task in plan.active if runs.get(task, instance.id) != instance.id)
        possible[instance.id] = replace(
            plan, active=plan.active - early, standby=plan.standby | early.intersection(instance.positions)
        )
    return possible
