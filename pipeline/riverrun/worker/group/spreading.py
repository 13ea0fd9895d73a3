"""Spreads tasks over places, which are instances of an application or stream threads of an instance."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from riverrun.worker.group.balance import Balance

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.records import TaskId


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

    Returns:
        The place of each task.
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
    """Fill the room of each place per sub-topology: first with tasks that are there already, then with those that lack least.

    Of the tasks at a place, prefers to move those of which a place with free room has state, too.
    """
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

    for task in sorted(homes, key=lambda home: (-elsewhere(home), home)):
        give(task, homes[task])
    places = sorted((lag, task, name) for task in tasks for name, lag in lags.get(task, {}).items())
    for _, task, name in places:
        give(task, name)
    for task in [task for task in tasks if task not in owner]:
        rest = left[task.sub_topology]
        give(task, max(rest, key=lambda name: (rest[name], name)))
    return owner
