"""Large groups are assigned in a number of steps that grows with tasks and copies, not with their product with instances."""

from __future__ import annotations

import hashlib
import heapq
import os
import random
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.records import TaskId
from riverrun.worker.group.assignment import assign
from riverrun.worker.group.leadership import give_assignments
from riverrun.worker.group.protocol import (
    AssignmentConfig,
    Instance,
    Lags,
    SubscriptionInfo,
    assignment_info_of,
    in_order,
    packed,
    ranges,
)
from tests.depth import DEEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.worker.group.protocol import InstanceTasks

SUB_TOPOLOGIES = 7
POSITION = 1000
LIMIT = 1_000_000
LAGS_PER_COPY = 12
"""Most lags that are looked up per task and copy, on average. Up to 6 are, where many instances have state of a task."""
STEPS_PER_COPY = 60
"""Most changes of heaps per task and copy, on average. Up to 40 are, where many instances have state of a task."""
HUGE = 100_000
"""Copies of tasks from which on rebalances with another number of instances take a minute of CPU."""
OTHER_GROUPS = ((1000, 100, 50, ()), (5000, 300, 0, ("rack",)), (5000, 300, 50, ("rack",)), (1000, 1000, 1, ("rack",)))
"""Only in `make deep`: others have each of their sizes, numbers of standbys and tags."""
EVERY_EVENT = bool(os.environ.get("EVERY_EVENT"))
"""Whether groups of this size lose and gain instances as well."""


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

    def rebalance(self) -> dict[str, InstanceTasks]:
        plans = assign(self.instances, self.tasks, self.config)
        self.instances = [following(each, plans[each.id]) for each in self.instances]
        return plans


def following(instance: Instance, plan: InstanceTasks) -> Instance:
    positions = dict.fromkeys(plan.active | plan.standby, POSITION)
    return replace(instance, active=plan.active, standby=plan.standby, positions=positions)


def counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls[0] += 1
        return function(*arguments)

    return counted


@pytest.mark.parametrize(
    ("tasks", "instances", "standbys", "tags"),
    [
        (1000, 100, 0, ("rack",)),
        (1000, 100, 1, ()),
        (1000, 100, 1, ("rack",)),
        (6000, 2, 0, ()),
        (6000, 2, 50, ("rack",)),
        pytest.param(1000, 100, 50, ("rack",), marks=pytest.mark.slow),
        pytest.param(5000, 300, 1, ("rack",), marks=pytest.mark.slow),
        pytest.param(1000, 1000, 0, (), marks=pytest.mark.slow),
        *(OTHER_GROUPS if DEEP else ()),
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
    steps = [0]
    for name in ("heappush", "heappop", "heapreplace"):
        monkeypatch.setattr(heapq, name, counting(getattr(heapq, name), steps))
    config = AssignmentConfig(num_standby_replicas=standbys, rack_aware_assignment_tags=tags)
    group = Group(tasks, instances, config)
    events = (None, None, group.third_dies, partial(group.join, instances // 3))
    is_huge = tasks * standbys >= HUGE
    for event in events[:2] if is_huge and not EVERY_EVENT else events:
        if event is not None:
            event()
        asked[0], steps[0], began = 0, 0, time.process_time()
        plans = group.rebalance()
        cpu_s = time.process_time() - began
        said = sum(len(packed(subscription_of(number, each))) for number, each in enumerate(group.instances))
        size = f"{tasks} tasks, {len(group.instances)} instances, {standbys} standbys, tags {tags}"
        print(f"{size}: {cpu_s:.2f} s of CPU, {asked[0]} lags, {steps[0]} steps, {said} bytes of subscriptions")
        assert asked[0] <= LAGS_PER_COPY * tasks * (1 + standbys)
        assert steps[0] <= STEPS_PER_COPY * tasks * (1 + standbys)
        assert sum(len(plan.active) for plan in plans.values()) == tasks
        copies = sum(len(plan.standby) for plan in plans.values())
        wanted = tasks * min(standbys, len(group.instances) - 1)
        assert wanted <= copies <= wanted + config.max_warmup_replicas


@pytest.mark.parametrize(
    ("tasks", "instances", "standbys", "has_addresses"),
    [
        (400, 100, 1, True),
        (1000, 100, 1, True),
        (2000, 150, 1, True),
        (1000, 100, 50, False),
        pytest.param(5000, 300, 1, False, marks=pytest.mark.slow),
    ],
)
def test_messages_of_large_groups_fit_into_one_record(
    tasks: int, instances: int, standbys: int, has_addresses: bool
) -> None:
    """Brokers keep them in one. Addresses of instances are left out if it would be too large with them.

    Instances that have come and gone leave plans without any order that compression could use.
    """
    config = AssignmentConfig(num_standby_replicas=standbys)
    group = Group(tasks, instances, config)
    group.rebalance()
    group.third_dies()
    group.rebalance()
    group.join(instances // 3)
    group.rebalance()
    members = {each.id: subscription_of(number, each) for number, each in enumerate(group.instances)}
    said = sum(len(packed(each)) for each in members.values())
    made = give_assignments(members, {"clicks": 1000}, group.tasks, config, "clicks-v1", room=LIMIT - said)
    told = [assignment_info_of(each) for each in made.values()]
    print(f"{tasks} tasks, {instances} instances, {standbys} standbys: {said} + {sum(map(len, made.values()))} bytes")
    assert said + sum(map(len, made.values())) <= LIMIT
    assert [each.omits_servers for each in told] == [not has_addresses] * len(group.instances)
    assert all(len(each.servers) == (tasks if has_addresses else 0) for each in told)
    assert sum(len(in_order(each.active)) for each in told) == tasks


def subscription_of(number: int, instance: Instance) -> SubscriptionInfo:
    return SubscriptionInfo(
        instance=instance.id,
        fingerprint=hashlib.sha256(b"").hexdigest(),
        capacity=instance.capacity,
        active=ranges(instance.active),
        standby=ranges(instance.standby),
        known=ranges(instance.positions),
        positions=[7919 * 104_729 * (task.partition + 1) % 999_999_937 for task in sorted(instance.positions)],
        server=f"10.0.{number // 250}.{number % 250}:8080",
        topics={"clicks": 1000},
        process=hashlib.sha256(instance.id.encode()).hexdigest()[:32],
    )
