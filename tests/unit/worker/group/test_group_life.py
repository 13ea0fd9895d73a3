"""A group as it lives: instances come, go, come back and restore at their own pace, and tasks get more partitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.records import TaskId
from riverrun.worker.group.assignment import assign, withhold
from riverrun.worker.group.protocol import AssignmentConfig, Instance, InstanceTasks

END = 1_000_000
EVENTS = ["joins", "dies", "restarts", "loses its state", "has other threads", "other replicas", "a partition more"]


@dataclass
class Group:
    """Instances, the last assignment of each, and the tasks that they share."""

    random: Random
    config: AssignmentConfig
    tasks: dict[TaskId, bool]
    instances: dict[str, Instance]
    plans: dict[str, InstanceTasks]
    joined: int = 0

    def happen(self, event: str) -> None:
        random = self.random
        if event == "joins" or not self.instances:
            name, self.joined = f"instance-{self.joined}", self.joined + 1
            self.instances[name] = Instance(name, random.randint(1, 3), {"rack": random.choice("xyz")})
            return
        one = self.instances[random.choice(sorted(self.instances))]
        match event:
            case "dies":
                del self.instances[one.id]
                self.plans.pop(one.id, None)
                if not self.instances:
                    self.happen("joins")
            case "restarts" | "loses its state":
                left = one.positions if event == "restarts" else {}
                self.instances[one.id] = Instance(one.id, one.capacity, one.tags, positions=left)
                self.plans.pop(one.id, None)
            case "has other threads":
                self.instances[one.id] = replace(one, capacity=random.randint(1, 3))
            case "other replicas":
                self.config = replace(self.config, num_standby_replicas=random.randint(0, 2))
            case _:
                task = random.choice(sorted(self.tasks))
                partitions = sum(other.sub_topology == task.sub_topology for other in self.tasks)
                self.tasks[TaskId(task.sub_topology, partitions)] = self.tasks[task]

    def rebalance(self) -> None:
        everyone = list(self.instances.values())
        self.plans = withhold(assign(everyone, self.tasks, self.config), everyone)

    def obey(self) -> None:
        """Each instance lets go of tasks when it comes to it, begins others at once, and restores a part of what it lacks."""
        for name, plan in self.plans.items():
            one = self.instances[name]
            kept = {task for task in one.active - plan.active if self.random.random() < 0.3}
            active = plan.active | kept
            others = [task for other in self.instances.values() if other is not one for task in other.active]
            assert not active.intersection(others), "two instances run a task"
            positions = dict(one.positions)
            for task in active | plan.standby:
                if self.tasks[task]:
                    positions[task] = min(END, positions.get(task, 0) + self.random.choice([END // 4, END]))
            restoring = frozenset(task for task in active if positions.get(task, END) < END)
            self.instances[name] = replace(
                one, active=active, standby=plan.standby, positions=positions, restoring=restoring
            )

    @property
    def is_settled(self) -> bool:
        return all(
            plan.active == self.instances[name].active and not plan.warm_up and not self.instances[name].restoring
            for name, plan in self.plans.items()
        ) and Counter(task for plan in self.plans.values() for task in plan.active) == Counter(self.tasks.keys())

    def settle(self) -> None:
        for _ in range(200):
            self.rebalance()
            self.obey()
            if self.is_settled:
                before = self.plans
                self.rebalance()
                if self.plans == before:
                    return
        pytest.fail("the group does not settle")

    def racks(self, task: TaskId) -> list[str]:
        """The places of a task and its copies."""
        return [one.tags["rack"] for one in self.instances.values() if task in one.active | one.standby]


configs = st.builds(
    AssignmentConfig,
    num_standby_replicas=st.integers(0, 2),
    max_warmup_replicas=st.integers(1, 3),
    acceptable_recovery_lag=st.sampled_from([0, 10_000]),
    rack_aware_assignment_tags=st.sampled_from([(), ("rack",)]),
)


@given(
    st.integers(0, 2**32).map(Random),
    configs,
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=3),
    st.lists(st.sampled_from(EVENTS), min_size=1, max_size=5),
)
def test_whatever_happens_the_group_settles_and_nobody_runs_a_task_beside_another(
    random: Random, config: AssignmentConfig, sub_topologies: list[tuple[int, bool]], events: list[str]
) -> None:
    tasks = {
        TaskId(sub, partition): has_state
        for sub, (partitions, has_state) in enumerate(sub_topologies)
        for partition in range(partitions)
    }
    group = Group(random, config, tasks, {}, {})
    for event in ["joins", "joins", *events]:
        group.happen(event)
        for _ in range(random.randint(0, 3)):  # the next event may come before the group has settled
            group.rebalance()
            group.obey()
    group.settle()

    replicas = min(group.config.num_standby_replicas, len(group.instances) - 1)
    racks = {one.tags["rack"] for one in group.instances.values()}
    for task, has_state in group.tasks.items():
        found = group.racks(task)
        assert len(found) == 1 + (replicas if has_state else 0)
        if group.config.rack_aware_assignment_tags:
            assert len(set(found)) == min(len(found), len(racks))
    for sub in {task.sub_topology for task in group.tasks}:
        shares = [
            sum(task.sub_topology == sub for task in one.active) / one.capacity for one in group.instances.values()
        ]
        assert max(shares) - min(shares) <= 1
