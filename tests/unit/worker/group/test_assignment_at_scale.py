"""Large groups are assigned in a number of steps that grows with tasks and copies, not with their product with instances."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TaskId
from riverrun.worker.group.assignment import assign
from riverrun.worker.group.protocol import AssignmentConfig, Instance, Lags

if TYPE_CHECKING:
    from riverrun.worker.group.protocol import Plan

SUB_TOPOLOGIES = 7
POSITION = 1000
LAGS_PER_COPY = 60
"""Most lags that are looked up per task and copy, on average. Up to 28 are, where many instances have state of a task."""


class Group:
    """A group without processes: it follows each plan at once."""

    def __init__(self, tasks: int, instances: int, config: AssignmentConfig) -> None:
        self.tasks = {TaskId(n % SUB_TOPOLOGIES, n // SUB_TOPOLOGIES): True for n in range(tasks)}
        self.config = config
        self.joined = 0
        self.instances: list[Instance] = []
        self.join(instances)

    def join(self, count: int) -> None:
        for n in range(self.joined, self.joined + count):
            self.instances.append(Instance(f"instance-{n:04}", 4, {"rack": str(n % 3)}))
        self.joined += count

    def third_dies(self) -> None:
        random.Random(1).shuffle(self.instances)
        del self.instances[: len(self.instances) // 3]

    def rebalance(self) -> dict[str, Plan]:
        plans = assign(self.instances, self.tasks, self.config)
        self.instances = [following(each, plans[each.id]) for each in self.instances]
        return plans


def following(instance: Instance, plan: Plan) -> Instance:
    positions = dict.fromkeys(plan.active | plan.standby, POSITION)
    return replace(instance, active=plan.active, standby=plan.standby, positions=positions)


@pytest.mark.parametrize(
    ("tasks", "instances", "standbys", "tags"),
    [
        (1000, 100, 0, ()),
        (1000, 100, 1, ("rack",)),
        pytest.param(1000, 100, 50, (), marks=pytest.mark.slow),
        pytest.param(5000, 300, 1, (), marks=pytest.mark.slow),
        (6000, 2, 1, ()),
        pytest.param(1000, 1000, 1, (), marks=pytest.mark.slow),
    ],
)
def test_large_groups_are_assigned_in_few_steps(
    tasks: int, instances: int, standbys: int, tags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start, go on, lose a third of the instances, and gain as many."""
    asked, ask = [0], Lags.__call__

    def counted(lags: Lags, task: TaskId, instance: str) -> int:
        asked[0] += 1
        return ask(lags, task, instance)

    monkeypatch.setattr(Lags, "__call__", counted)
    config = AssignmentConfig(num_standby_replicas=standbys, rack_aware_assignment_tags=tags)
    group = Group(tasks, instances, config)
    for event in (None, None, group.third_dies, partial(group.join, instances // 3)):
        if event is not None:
            event()
        asked[0] = 0
        plans = group.rebalance()
        print(f"{tasks} tasks, {len(group.instances)} instances, {standbys} standbys: {asked[0]} lags")
        assert asked[0] <= LAGS_PER_COPY * tasks * (1 + standbys)
        assert sum(len(plan.active) for plan in plans.values()) == tasks
        copies = sum(len(plan.standby) for plan in plans.values())
        wanted = tasks * min(standbys, len(group.instances) - 1)
        assert wanted <= copies <= wanted + config.max_warmup_replicas
