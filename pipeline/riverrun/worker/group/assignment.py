"""Assigns tasks by plain arithmetic on what the instances of an application report of themselves.

The rules are those of Kafka Streams' `HighAvailabilityTaskAssignor`, in three steps:

- `spread` finds the intended place of each task, as even as capacities allow (`Balance`). Kafka Streams distributes all tasks
  from scratch; here tasks stay where they are unless balance requires a move. Places are instances of an application, or stream
  threads of an instance.
- `standbys` finds the intended places of copies of tasks' states, in other racks if possible.
- `_Present` runs a task only where its state is caught up, while the intended instance warms up as a standby. Standbys follow
  the same rule.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from riverrun.worker.group.protocol import RUNNING, Instance, InstanceTasks, Lags

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from riverrun.records import TaskId
    from riverrun.worker.group.protocol import AssignmentConfig


def gain(from_count: int, from_capacity: int, to_count: int, to_capacity: int) -> int:
    """Return the gain of moving one task: positive if both counts come closer to their shares, 0 if it makes no difference."""
    # By the method of Sainte-Laguë: the sum of count² / capacity becomes smaller.
    return (2 * from_count - 1) * to_capacity - (2 * to_count + 1) * from_capacity


class Balance:
    """Numbers of tasks, by sub-topology and by place.

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
        # Totals first: later levels make no move that spoils an earlier one.
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
        # A single move would spoil the totals, so tasks of two sub-topologies swap places. Otherwise a sub-topology
        # could end up entirely on one instance.
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


def spread(
    tasks: Collection[TaskId],
    capacity: Mapping[str, int],
    lags: Mapping[TaskId, Mapping[str, int]],
    load: Mapping[str, int],
) -> dict[TaskId, str]:
    """Distribute tasks, in total and per sub-topology, in proportion to capacity, with as few moves as possible.

    Args:
        tasks: The tasks to distribute.
        capacity: By place that may run tasks; at least one.
        lags: The lag of places that have a task already: a smaller lag is better.
        load: How many other tasks each place has already.
    """
    homes = {task: min(lags[task], key=lambda name: (lags[task][name], name)) for task in tasks if lags.get(task)}
    balance = Balance(capacity, load)
    for task, name in homes.items():
        balance.add(task.sub_topology, name)
    before = {sub_topology: Counter(counts) for sub_topology, counts in balance.counts.items()}
    for task in sorted(set(tasks) - homes.keys()):
        balance.add_anywhere(task.sub_topology)
    balance.even_out()
    return _filled(sorted(tasks), lags, homes, before, balance.counts)


def _filled(
    tasks: list[TaskId],
    lags: Mapping[TaskId, Mapping[str, int]],
    homes: Mapping[TaskId, str],
    before: Mapping[int, Counter[str]],
    room: Mapping[int, Counter[str]],
) -> dict[TaskId, str]:
    """Fill the room of each place per sub-topology: first with tasks that are there, then with those that lack least."""
    left = {sub_topology: Counter(counts) for sub_topology, counts in room.items()}
    owner: dict[TaskId, str] = {}

    def give(task: TaskId, name: str) -> None:
        if task not in owner and left[task.sub_topology][name] > 0:
            owner[task] = name
            left[task.sub_topology][name] -= 1

    def elsewhere(task: TaskId) -> float:
        sub = task.sub_topology
        gaining = (lag for name, lag in lags[task].items() if room[sub][name] > before[sub][name])
        return min(gaining, default=float("inf"))

    # Tasks that lack most elsewhere keep their places first: those that must move are then the ones of which a
    # place with free room has state, too.
    for task in sorted(homes, key=lambda home: (-elsewhere(home), home)):
        give(task, homes[task])
    places = sorted((lag, task, name) for task in tasks for name, lag in lags.get(task, {}).items())
    for _, task, name in places:
        give(task, name)
    for task in [task for task in tasks if task not in owner]:
        rest = left[task.sub_topology]
        give(task, max(rest, key=lambda name: (rest[name], name)))
    return owner


def standbys(
    instances: Collection[Instance], owners: Mapping[TaskId, str], lags: Lags, config: AssignmentConfig
) -> dict[TaskId, set[str]]:
    """Return the instances that follow the changelogs of each task; present followers stay if balance allows."""
    copies = _Copies(instances, owners, config.rack_aware_assignment_tags, lags)
    for _ in range(min(config.num_standby_replicas, len(instances) - 1)):
        for task in sorted(owners):
            copies.add(task)
    copies.even_out()
    return {task: holders - {owners[task]} for task, holders in copies.holders.items()}


_Tag: TypeAlias = "tuple[str, str | None]"
# How ill an instance suits a copy: shared tags, whether it is no follower yet or is behind, its load, and its name.
_Badness: TypeAlias = "tuple[int, bool, bool, float, str]"


class _Copies:
    """The instances that are to follow each task's changelog.

    Args:
        tags: Tags in whose values the copies of a state should differ.
    """

    def __init__(
        self, instances: Iterable[Instance], owners: Mapping[TaskId, str], tags: tuple[str, ...], lags: Lags
    ) -> None:
        self.holders = {task: {owner} for task, owner in owners.items()}
        """The instances that have each task or a copy of it."""
        self._instances = {instance.id: instance for instance in instances}
        self._tags = {name: tuple((tag, each.tags.get(tag)) for tag in tags) for name, each in self._instances.items()}
        """Per instance; a missing tag has the value None."""
        self._lags = lags
        self._load = Counter(owners.values())
        self._present = {task: Counter(self._tags[owner]) for task, owner in owners.items()}
        """How many holders of a task have each tag's value."""
        self._owned: defaultdict[str, set[TaskId]] = defaultdict(set)
        for task, owner in owners.items():
            self._owned[owner].add(task)
        self._held: defaultdict[str, set[TaskId]] = defaultdict(set)
        self._followers: defaultdict[TaskId, set[str]] = defaultdict(set)
        # Pairs of instances between which nothing could be moved are not tried again, until a move changes that.
        self._in_vain: defaultdict[str, set[str]] = defaultdict(set)
        self._state = {name: instance.active.union(instance.positions) for name, instance in self._instances.items()}
        # By what an instance without any state of a task would lack of it.
        self._rank = {task: n for n, task in enumerate(sorted(owners, key=lambda task: (lags.end(task), task)))}
        # The instances that have state of each task, as heaps. Entries may be too low, as loads only grow in `add`.
        self._prepared: dict[TaskId, list[_Badness]] = {}
        self._busy: dict[str, float] = {}
        self._order: dict[str, tuple[float, str]] = {}
        self._alike: defaultdict[tuple[_Tag, ...], list[str]] = defaultdict(list)
        # Heaps by load of the instances with equal tags. Entries of former loads are passed over, not removed.
        self._least: defaultdict[tuple[_Tag, ...], list[tuple[float, str]]] = defaultdict(list)
        for name, instance in self._instances.items():
            for task in instance.standby:
                self._followers[task].add(name)
            self._alike[self._tags[name]].append(name)
            self._weigh(name, 0)

    def add(self, task: TaskId) -> None:
        """Add a copy at the best instance that has none, if there is one."""
        # Of instances with equal tags and without any state of the task, the least busy one is best. So few are compared.
        holders = self.holders[task]
        least = filter(None, (self._least_busy(group, holders) for group in self._least.values()))
        choices = [self._badness(task, name) for name in least]
        prepared = self._best_prepared(task)
        if prepared is not None:
            choices.append(prepared)
        if choices:
            self._hold(task, min(choices)[-1])

    def _badness(self, task: TaskId, name: str) -> _Badness:
        is_behind = not self._lags.is_caught_up(task, name)
        return self._shared_tags(task, name), name not in self._followers[task], is_behind, self._busy[name], name

    def _best_prepared(self, task: TaskId) -> _Badness | None:
        """Return the best instance that has state of a task and no copy yet."""
        heap, holders = self._prepared.get(task), self.holders[task]
        if heap is None:
            names = self._followers[task].union(self._lags.known(task)) - holders
            heap = self._prepared[task] = [self._badness(task, name) for name in names]
            heapq.heapify(heap)
        while heap:
            entry = heap[0]
            _, is_new, is_behind, _, name = entry
            if name in holders:
                heapq.heappop(heap)
                continue
            present = self._shared_tags(task, name), is_new, is_behind, self._busy[name], name
            if present == entry:
                return entry
            # Worse than when it was pushed, as its load has grown: it goes back to where it belongs now.
            heapq.heapreplace(heap, present)
        return None

    def even_out(self) -> None:
        """Move copies until no move brings a gain."""
        # Extremes first, which mostly works: of all instances, then of instances with equal tags, then of each one.
        choices = [list(self._instances)], list(self._alike.values()), [[name] for name in self._instances]
        while any(map(self._move_one, choices)):
            pass

    def _move_one(self, groups: Collection[Collection[str]]) -> bool:
        """Move a copy from the busiest instance of a group to the least busy one of a group, if that can be done."""
        order = self._order.__getitem__
        sources = sorted((max(names, key=order) for names in groups), key=order, reverse=True)
        targets = sorted((min(names, key=order) for names in groups), key=order)
        for source in sources:
            for target in targets:
                # Ordered by load: the targets that follow are busier.
                if self._gain(source, target) <= 0:
                    break
                if self._move_any(source, target):
                    return True
        return False

    def _move_any(self, source: str, target: str) -> bool:
        """Move the copy of which the target lacks least, if there is one that may be moved."""
        if target in self._in_vain[source]:
            return False
        differing = [pair for pair in zip(self._tags[source], self._tags[target], strict=True) if pair[0] != pair[1]]
        movable = self._held[source] - self._held[target] - self._owned[target]
        known = movable & self._state[target]
        choices = [task for task in known if self._is_as_far_apart(task, differing)]
        # The target lacks all of these, to their ends, so the first in rank is the best of them.
        choices.extend(islice(self._ranked(movable - known, differing), 1))
        if not choices:
            self._in_vain[source].add(target)
            return False
        task = min(choices, key=lambda task: (self._lags(task, target), task))
        self._drop(task, source)
        self._hold(task, target)
        if differing:
            self._in_vain.clear()
        else:
            # The holders' tags are as before, so only what the two instances hold has changed.
            self._in_vain[target].clear()
            for targets in self._in_vain.values():
                targets.discard(source)
        return True

    def _ranked(self, tasks: set[TaskId], differing: Collection[tuple[_Tag, _Tag]]) -> Iterator[TaskId]:
        """Yield tasks that may be moved (`_is_as_far_apart`), in their rank."""
        # Sorting all of them is for the rare case that the first may not be moved.
        first = min(tasks, key=self._rank.__getitem__, default=None)
        if first is not None and self._is_as_far_apart(first, differing):
            yield first
        for task in sorted(tasks, key=self._rank.__getitem__)[1:]:
            if self._is_as_far_apart(task, differing):
                yield task

    def _gain(self, source: str, target: str) -> int:
        capacities = self._instances[source].capacity, self._instances[target].capacity
        return gain(self._load[source], capacities[0], self._load[target], capacities[1])

    def _is_as_far_apart(self, task: TaskId, differing: Collection[tuple[_Tag, _Tag]]) -> bool:
        """Return whether a copy shares no more tags with the others at a target than at its source."""
        if not differing:
            return True
        present = self._present[task]
        # The source's count includes the copy itself.
        return sum(present[there] - (present[here] - 1) for here, there in differing) <= 0

    def _hold(self, task: TaskId, name: str) -> None:
        self.holders[task].add(name)
        self._held[name].add(task)
        self._present[task].update(self._tags[name])
        self._weigh(name, 1)

    def _drop(self, task: TaskId, name: str) -> None:
        self.holders[task].remove(name)
        self._held[name].remove(task)
        self._present[task].subtract(self._tags[name])
        self._weigh(name, -1)

    def _weigh(self, name: str, by: int) -> None:
        self._load[name] += by
        self._busy[name] = self._load[name] / self._instances[name].capacity
        self._order[name] = self._busy[name], name
        heapq.heappush(self._least[self._tags[name]], self._order[name])

    def _least_busy(self, heap: list[tuple[float, str]], holders: Collection[str]) -> str | None:
        """Return the least busy instance of a group that is not a holder; None if all are."""
        passed, found = [], None
        while heap:
            busy, name = heap[0]
            if busy == self._busy[name]:
                if name not in holders:
                    found = name
                    break
                passed.append(heapq.heappop(heap))
            else:
                heapq.heappop(heap)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _shared_tags(self, task: TaskId, name: str) -> int:
        return sum(map(self._present[task].__getitem__, self._tags[name]))


def assign(
    instances: Collection[Instance], tasks: Mapping[TaskId, bool], config: AssignmentConfig
) -> dict[str, InstanceTasks]:
    """Return the plan of each instance, by its id. Each task is active exactly once; `tasks` says whether it has state."""
    capacity = {instance.id: instance.capacity for instance in instances}
    lags = Lags(instances, config.acceptable_recovery_lag)
    stateful = [task for task, has_state in tasks.items() if has_state]
    stateless = tasks.keys() - set(stateful)
    meant = spread(stateful, capacity, {task: lags.known(task) for task in stateful}, {})
    now = _Present(meant, standbys(instances, meant, lags, config), capacity, lags, config.max_warmup_replicas)
    now.move_active()
    now.move_standbys()
    # Tasks without state come last, and even out what those with state have left.
    running = {task: {i.id: RUNNING for i in instances if task in i.active} for task in stateless}
    active = now.active | spread(stateless, capacity, running, Counter(meant.values()))
    runs = _by_place((task, {owner}) for task, owner in active.items())
    follows, warms = _by_place(now.copies.items()), _by_place(now.warm_ups.items())
    return {
        name: InstanceTasks(frozenset(runs[name]), frozenset(follows[name]), frozenset(warms[name]))
        for name in sorted(capacity)
    }


def _by_place(places: Iterable[tuple[TaskId, Collection[str]]]) -> defaultdict[str, list[TaskId]]:
    found: defaultdict[str, list[TaskId]] = defaultdict(list)
    for task, names in places:
        for name in names:
            found[name].append(task)
    return found


class _Present:
    """The present places of stateful tasks: the intended instances, or those with more of the tasks' state.

    Args:
        spare: How many more warm-up copies there may be (`max.warmup.replicas`).
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
            # The intended instance follows in place of the standby that becomes active: not an additional copy.
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


def withhold(plans: Mapping[str, InstanceTasks], instances: Collection[Instance]) -> dict[str, InstanceTasks]:
    """Return the plans without active tasks that another instance still runs (cooperative rebalancing)."""
    # The instance that runs such a task sees that its plan no longer has it, commits, closes it and reports that. Only
    # then does the next instance receive it. Until then the next instance keeps following its changelog, if it does.
    runs = {task: instance.id for instance in instances for task in instance.active}
    possible = {}
    for instance in instances:
        plan = plans[instance.id]
        early = frozenset(task for task in plan.active if runs.get(task, instance.id) != instance.id)
        possible[instance.id] = replace(
            plan, active=plan.active - early, standby=plan.standby | early.intersection(instance.positions)
        )
    return possible
