"""Who runs which task: pure arithmetic on what the instances of an application say of themselves.

The rules are those of Kafka Streams' `HighAvailabilityTaskAssignor`: tasks with state are balanced and stay where they are; an
active task goes only to an instance whose state is caught up, while the one it is meant for warms up as a standby.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pipeline.records import TaskId


@dataclass(frozen=True, slots=True)
class Instance:
    """What an instance says of itself.

    Args:
        id: Names the instance; survives restarts, as long as its state directory does.
        capacity: Number of its stream threads.
        tags: Client tags, such as rack or zone.
        active: The tasks it runs at this moment.
        positions: Per task of which it has local state: the sum of the changelog offsets that are applied.
    """

    id: str
    capacity: int
    tags: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[TaskId] = frozenset()
    positions: Mapping[TaskId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssignmentConfig:
    """Kafka Streams' settings of the same names.

    Args:
        num_standby_replicas: Copies of each state beside the active one.
        max_warmup_replicas: How many tasks may warm up elsewhere at a time, beyond the standbys.
        acceptable_recovery_lag: With at most so many changelog records missing, an instance counts as caught up.
        rack_aware_assignment_tags: Tags in whose values the copies of a state should differ.
    """

    num_standby_replicas: int = 0
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    rack_aware_assignment_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What one instance is to run.

    Args:
        active: Tasks to process.
        standby: Tasks whose changelogs to follow.
        warm_up: Those of the standbys that will become active here once they have caught up.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warm_up: frozenset[TaskId] = frozenset()


def assign(instances: Collection[Instance], tasks: Mapping[TaskId, bool], config: AssignmentConfig) -> dict[str, Plan]:
    """Assign all tasks.

    Args:
        instances: Everybody who is there; at least one.
        tasks: All tasks, and whether each has state.
        config: Settings.

    Returns:
        A plan per instance id. Each task is active exactly once.
    """
    everyone = sorted(instances, key=lambda instance: instance.id)
    ends = _ends(everyone)
    stateful = sorted(task for task, has_state in tasks.items() if has_state)
    wanted = spread(everyone, stateful, Counter())
    active, warm_up = _only_caught_up(everyone, wanted, ends, config)
    active |= spread(everyone, sorted(tasks.keys() - set(stateful)), Counter(wanted.values()))
    standby = _standbys(everyone, stateful, active, warm_up, config)
    return {
        instance.id: Plan(
            frozenset(task for task, owner in active.items() if owner == instance.id),
            frozenset(task for task, owners in standby.items() if instance.id in owners),
            frozenset(task for task, owner in warm_up.items() if owner == instance.id),
        )
        for instance in everyone
    }


def withhold(plans: Mapping[str, Plan], instances: Collection[Instance]) -> dict[str, Plan]:
    """The same plans without active tasks that another instance still runs (cooperative rebalancing).

    Whoever runs one sees that it is not in its plan any more, commits, lets go of it and says so; only then is it given away.
    Until then, whoever is to have it goes on following its changelog, if it does.
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


def is_caught_up(instance: Instance, task: TaskId, ends: Mapping[TaskId, int], acceptable_lag: int) -> bool:
    """Whether an instance could run a task without a long restore."""
    return task in instance.active or ends.get(task, 0) - instance.positions.get(task, 0) <= acceptable_lag


def _ends(instances: Iterable[Instance]) -> dict[TaskId, int]:
    """The furthest position of each task: the active one's, or that of whoever has most of its state."""
    ends: dict[TaskId, int] = {}
    for instance in instances:
        for task, position in instance.positions.items():
            ends[task] = max(ends.get(task, 0), position)
    return ends


def spread(instances: list[Instance], tasks: list[TaskId], load: Counter[str]) -> dict[TaskId, str]:
    """Tasks to instances in proportion to capacity, with as few moves as that allows.

    Args:
        instances: Everybody who is there; at least one.
        tasks: What to distribute.
        load: How many other tasks each instance has already.

    Returns:
        Instance id by task.
    """
    room = _quotas(instances, len(tasks), load, Counter(i.id for i in instances for t in tasks if t in i.active))
    owner: dict[TaskId, str] = {}

    def give(task: TaskId, candidates: Iterable[Instance]) -> None:
        free = [instance for instance in candidates if room[instance.id] > 0]
        if free and task not in owner:
            best = max(free, key=lambda i: (i.positions.get(task, 0), room[i.id] / i.capacity, i.id))
            owner[task] = best.id
            room[best.id] -= 1

    for task in tasks:
        give(task, [instance for instance in instances if task in instance.active])
    for task in tasks:
        give(task, [instance for instance in instances if task in instance.positions])
    for task in tasks:
        give(task, instances)
    return owner


def _quotas(instances: list[Instance], count: int, load: Counter[str], owned: Counter[str]) -> Counter[str]:
    """How many more tasks each instance is to get, one at a time to whoever has least for its capacity.

    Among equals, whoever runs most of the tasks now: it can keep one more.
    """
    quotas: Counter[str] = Counter()
    for _ in range(count):
        neediest = min(
            instances,
            key=lambda i: ((load[i.id] + quotas[i.id]) / i.capacity, quotas[i.id] - owned[i.id], i.id),
        )
        quotas[neediest.id] += 1
    return quotas


def _only_caught_up(
    instances: list[Instance], wanted: Mapping[TaskId, str], ends: Mapping[TaskId, int], config: AssignmentConfig
) -> tuple[dict[TaskId, str], dict[TaskId, str]]:
    """Who runs each task for now, and who warms up to run it later."""
    by_id = {instance.id: instance for instance in instances}
    active = dict(wanted)
    warm_up: dict[TaskId, str] = {}
    load = Counter(wanted.values())
    lag = config.acceptable_recovery_lag
    for task in sorted(wanted):
        target = by_id[wanted[task]]
        if is_caught_up(target, task, ends, lag):
            continue
        ready = [instance for instance in instances if is_caught_up(instance, task, ends, lag)]
        furthest = max(i.positions.get(task, 0) for i in instances)
        ready = ready or [i for i in instances if i.positions.get(task, 0) == furthest]
        if target in ready:
            continue
        chosen = min(ready, key=lambda i: (task not in i.active, load[i.id] / i.capacity, i.id))
        active[task] = chosen.id
        load[target.id] -= 1
        load[chosen.id] += 1
        if len(warm_up) < config.max_warmup_replicas:
            warm_up[task] = target.id
    return active, warm_up


def _standbys(
    instances: list[Instance],
    stateful: list[TaskId],
    active: Mapping[TaskId, str],
    warm_up: Mapping[TaskId, str],
    config: AssignmentConfig,
) -> dict[TaskId, set[str]]:
    """Where each state has copies: warm-ups, and standbys on other instances, in other racks if possible."""
    by_id = {instance.id: instance for instance in instances}
    copies: dict[TaskId, set[str]] = {task: {warm_up[task]} if task in warm_up else set() for task in stateful}
    load = Counter(active.values()) + Counter(warm_up.values())
    share = -(-len(stateful) * (1 + config.num_standby_replicas) // max(1, sum(i.capacity for i in instances)))
    for replica in range(config.num_standby_replicas):
        for task in stateful:
            holders = [by_id[active[task]], *(by_id[name] for name in copies[task])]
            others = [instance for instance in instances if instance not in holders]
            if not others or len(copies[task] - {warm_up.get(task)}) > replica:
                continue
            chosen = min(
                others,
                key=lambda i: (
                    _shared_tags(i, holders, config.rack_aware_assignment_tags),
                    load[i.id] >= share * i.capacity,
                    task not in i.positions,
                    load[i.id] / i.capacity,
                    i.id,
                ),
            )
            copies[task].add(chosen.id)
            load[chosen.id] += 1
    return copies


def _shared_tags(instance: Instance, holders: Iterable[Instance], tags: tuple[str, ...]) -> int:
    return sum(instance.tags.get(tag) == holder.tags.get(tag) for holder in holders for tag in tags)
