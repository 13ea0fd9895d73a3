"""The assignment of tasks to instances."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from riverrun.records import TaskId
from riverrun.worker.group.assignment import assign, withhold
from riverrun.worker.group.protocol import AssignmentConfig, Instance, InstanceTasks

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS = {TaskId(0, n): True for n in range(8)}
END = 1_000_000


def owning(name: str, *tasks: int, capacity: int = 1, follows: tuple[int, ...] = (), **tags: str) -> Instance:
    ids, standby = frozenset(TaskId(0, n) for n in tasks), frozenset(TaskId(0, n) for n in follows)
    return Instance(name, capacity, tags, ids, dict.fromkeys(ids | standby, END), standby=standby)


def actives(plans: dict[str, InstanceTasks]) -> dict[str, list[int]]:
    return {name: sorted(task.partition for task in plan.active) for name, plan in plans.items()}


def obedient(instance: Instance, plan: InstanceTasks, tasks: dict[TaskId, bool]) -> Instance:
    """An instance that has done as planned, and is caught up with all that it follows; what it had before lies there still."""
    caught_up = {task: END for task in plan.active | plan.standby if tasks[task]}
    positions = {**instance.positions, **caught_up}
    return replace(instance, active=plan.active, standby=plan.standby, positions=positions, restoring=frozenset())


def steps(
    instances: list[Instance], config: AssignmentConfig, tasks: dict[TaskId, bool]
) -> Iterator[tuple[list[Instance], dict[str, InstanceTasks]]]:
    """Repeat the assignment, to instances that follow it, until it is stable."""
    before: dict[str, InstanceTasks] = {}
    for _ in range(100):
        plans = withhold(assign(instances, tasks, config), instances)
        instances = [obedient(instance, plans[instance.id], tasks) for instance in instances]
        yield instances, plans
        if plans == before:
            return
        before = plans
    pytest.fail("the assignment does not settle")


def settled(instances: list[Instance], config: AssignmentConfig, tasks: dict[TaskId, bool]) -> dict[str, InstanceTasks]:
    """The final assignment, once all instances have followed it and warmed up often enough."""
    *_, (_, plans) = steps(instances, config, tasks)
    return plans


def test_a_first_instance_gets_everything_and_later_ones_their_share() -> None:
    config = AssignmentConfig()
    assert actives(assign([Instance("a", 1)], TASKS, config)) == {"a": list(range(8))}
    plans = settled([owning("a", *range(8)), Instance("b", 1), Instance("c", 2)], config, TASKS)
    assert {name: len(tasks) for name, tasks in actives(plans).items()} == {"a": 2, "b": 2, "c": 4}


def test_tasks_stay_where_they_are_when_an_instance_joins_or_leaves() -> None:
    config = AssignmentConfig(acceptable_recovery_lag=END)
    joined = assign([owning("a", 0, 1, 2, 3), owning("b", 4, 5, 6, 7), Instance("c", 1)], TASKS, config)
    assert set(actives(joined)["a"]) < {0, 1, 2, 3}
    assert set(actives(joined)["b"]) < {4, 5, 6, 7}
    left = assign([owning("a", 0, 1, 2), owning("b", 4, 5, 6)], TASKS, config)
    assert set(actives(left)["a"]) > {0, 1, 2}
    assert set(actives(left)["b"]) > {4, 5, 6}


def test_a_task_with_state_waits_until_its_new_place_has_warmed_up() -> None:
    config = AssignmentConfig(max_warmup_replicas=2)
    plans = assign([owning("a", *range(8)), Instance("b", 1)], TASKS, config)
    assert actives(plans) == {"a": list(range(8)), "b": []}
    assert len(plans["b"].warm_up) == 2
    assert plans["b"].standby == plans["b"].warm_up
    warm = Instance("b", 1, positions=dict.fromkeys(plans["b"].warm_up, END - 10_000))
    again = assign([owning("a", *range(8)), warm], TASKS, config)
    assert again["b"].active == plans["b"].warm_up
    assert len(again["b"].warm_up) == 2


def test_without_state_there_is_nothing_to_wait_for() -> None:
    stateless = dict.fromkeys(TASKS, False)
    busy = Instance("a", 1, active=frozenset(TASKS))
    plans = assign([busy, Instance("b", 1)], stateless, AssignmentConfig())
    assert {name: len(plan.active) for name, plan in plans.items()} == {"a": 4, "b": 4}
    assert not plans["b"].warm_up


def test_a_standby_takes_over_where_the_active_one_died() -> None:
    standby = Instance("b", 1, positions={TaskId(0, 0): END - 5})
    plans = assign([Instance("a", 1), standby, Instance("c", 1)], {TaskId(0, 0): True}, AssignmentConfig())
    assert actives(plans) == {"a": [], "b": [0], "c": []}


def test_a_task_is_not_given_away_while_somebody_still_runs_it() -> None:
    stateless = dict.fromkeys(TASKS, False)
    busy, idle = Instance("a", 1, active=frozenset(TASKS)), Instance("b", 1)
    plans = withhold(assign([busy, idle], stateless, AssignmentConfig()), [busy, idle])
    assert len(plans["a"].active) == 4
    assert not plans["b"].active
    released = replace(busy, active=plans["a"].active)
    plans = withhold(assign([released, idle], stateless, AssignmentConfig()), [released, idle])
    assert {name: len(plan.active) for name, plan in plans.items()} == {"a": 4, "b": 4}


def test_standbys_are_elsewhere_and_in_other_racks_if_there_are_any() -> None:
    racks = [
        owning("a", 0, 1, rack="x"),
        owning("b", 2, 3, rack="x"),
        owning("c", 4, 5, rack="y"),
        owning("d", 6, 7, rack="y"),
    ]
    config = AssignmentConfig(num_standby_replicas=1, rack_aware_assignment_tags=("rack",))
    plans = settled(racks, config, TASKS)
    rack_of = {instance.id: instance.tags["rack"] for instance in racks}
    for task in TASKS:
        (active,) = [name for name, plan in plans.items() if task in plan.active]
        (standby,) = [name for name, plan in plans.items() if task in plan.standby]
        assert rack_of[active] != rack_of[standby]
    assert {len(plan.standby) for plan in plans.values()} == {2}


def test_a_restored_task_returns_to_the_instance_with_its_state() -> None:
    task = TaskId(0, 0)
    restoring = Instance("a", 1, active=frozenset({task}), positions={task: 400}, restoring=frozenset({task}))
    back = Instance("b", 1, positions={task: END})
    assert actives(assign([restoring, back], {task: True}, AssignmentConfig())) == {"a": [], "b": [0]}
    nearly_done = replace(restoring, positions={task: END - 9_000})
    assert actives(assign([nearly_done, back], {task: True}, AssignmentConfig())) == {"a": [0], "b": []}


def test_a_standby_stays_until_the_one_in_its_place_has_caught_up() -> None:
    config = AssignmentConfig(num_standby_replicas=1, max_warmup_replicas=8)
    pair = [owning("a", 0, 1, 2, 3, follows=(4, 5, 6, 7)), owning("b", 4, 5, 6, 7, follows=(0, 1, 2, 3))]
    plans = assign([*pair, Instance("c", 1)], TASKS, config)
    assert len(plans["c"].standby) > 2
    assert plans["c"].standby == plans["c"].warm_up
    for task in TASKS:
        ready = [instance.id for instance in pair if task in plans[instance.id].active | plans[instance.id].standby]
        assert ready == ["a", "b"]


def test_what_warms_up_goes_on_when_somebody_else_joins() -> None:
    config = AssignmentConfig(max_warmup_replicas=1)
    busy = owning("a", *range(8))
    (warming,) = assign([busy, Instance("b", 1)], TASKS, config)["b"].warm_up
    half_way = Instance("b", 1, positions={warming: END // 2}, standby=frozenset({warming}))
    plans = assign([busy, half_way, Instance("c", 1)], TASKS, config)
    assert plans["b"].warm_up == {warming}


def test_standbys_are_even_when_an_instance_with_many_threads_joins() -> None:
    config = AssignmentConfig(num_standby_replicas=1)
    pair = [
        owning("a", 0, 1, 2, 3, follows=(4, 5, 6, 7), capacity=4),
        owning("b", 4, 5, 6, 7, follows=(0, 1, 2, 3), capacity=4),
    ]
    plans = settled([*pair, Instance("c", 4)], config, TASKS)
    assert sorted(len(plan.active | plan.standby) for plan in plans.values()) == [5, 5, 6]


def test_a_single_instance_has_no_standbys_of_its_own_tasks() -> None:
    plans = assign([owning("a", 0)], {TaskId(0, 0): True}, AssignmentConfig(num_standby_replicas=2))
    assert plans["a"] == InstanceTasks(frozenset({TaskId(0, 0)}))


kinds = {TaskId(sub, partition): sub != 1 for sub in range(3) for partition in range(4)}
stateful = sorted(task for task, has_state in kinds.items() if has_state)


@st.composite
def groups(draw: st.DrawFn) -> list[Instance]:
    """Instances that say anything that they could say: each task is run by one of them at most."""
    capacities = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    runs = draw(st.dictionaries(st.sampled_from(sorted(kinds)), st.integers(0, len(capacities) - 1)))
    some = st.sets(st.sampled_from(stateful))
    return [
        Instance(
            id=f"instance-{n}",
            capacity=capacity,
            tags={"rack": draw(st.sampled_from("xy"))},
            active=(active := frozenset(task for task, owner in runs.items() if owner == n)),
            positions=draw(st.dictionaries(st.sampled_from(stateful), st.integers(0, END))),
            restoring=active & draw(some),
            standby=frozenset(draw(some)) - active,
        )
        for n, capacity in enumerate(capacities)
    ]


configs = st.builds(
    AssignmentConfig,
    num_standby_replicas=st.integers(0, 2),
    max_warmup_replicas=st.integers(1, 4),
    rack_aware_assignment_tags=st.sampled_from([(), ("rack",)]),
)


@given(groups(), configs)
def test_whatever_the_start_each_task_runs_once_and_the_end_is_even(
    everyone: list[Instance], config: AssignmentConfig
) -> None:
    plans = assign(everyone, kinds, config)
    assert Counter(task for plan in plans.values() for task in plan.active) == Counter(kinds.keys())
    copies = Counter(task for plan in plans.values() for task in plan.standby)
    assert sum(max(0, n - config.num_standby_replicas) for n in copies.values()) <= config.max_warmup_replicas
    assert copies.keys() <= set(stateful)
    for plan in plans.values():
        assert not plan.active & plan.standby
        assert plan.warm_up <= plan.standby

    final = settled(everyone, config, kinds)
    assert Counter(task for plan in final.values() for task in plan.active) == Counter(kinds.keys())
    assert not any(plan.warm_up for plan in final.values())
    copies = Counter(task for plan in final.values() for task in plan.standby)
    assert all(copies[task] == min(config.num_standby_replicas, len(everyone) - 1) for task in stateful)
    for some in (
        kinds,
        stateful,
        kinds.keys() - set(stateful),
        *({t for t in kinds if t[0] == sub} for sub in range(3)),
    ):
        load = [len(final[instance.id].active & set(some)) / instance.capacity for instance in everyone]
        assert max(load) - min(load) <= 1


@given(groups(), configs)
def test_nothing_changes_as_long_as_nobody_joins_or_leaves(everyone: list[Instance], config: AssignmentConfig) -> None:
    *_, (known, plans) = steps(everyone, config, kinds)
    assert assign(known, kinds, config) == plans


@given(groups(), configs)
def test_who_joins_without_state_is_given_none_before_it_has_warmed_up(
    everyone: list[Instance], config: AssignmentConfig
) -> None:
    *_, (known, plans) = steps(everyone, config, kinds)
    joined = assign([*known, Instance("newcomer", 1)], kinds, config)
    assert not joined["newcomer"].active.intersection(stateful)
    for instance in everyone:
        assert plans[instance.id].active.intersection(stateful) == joined[instance.id].active.intersection(stateful)


@given(groups(), configs)
def test_as_long_as_there_are_standbys_no_death_makes_anybody_restore(
    everyone: list[Instance], config: AssignmentConfig
) -> None:
    assume(config.num_standby_replicas > 0 and len(everyone) > 1)
    *_, (known, _) = steps(everyone, config, kinds)
    after = assign(known[1:], kinds, config)
    for instance in known[1:]:
        ready = {
            task for task, position in instance.positions.items() if position >= END - config.acceptable_recovery_lag
        }
        assert after[instance.id].active.intersection(stateful) <= ready


@pytest.mark.parametrize("dead", range(3))
def test_with_standbys_no_death_makes_anybody_restore(dead: int) -> None:
    config = AssignmentConfig(num_standby_replicas=1)
    everyone = [owning("a", 0, 1, 2), owning("b", 3, 4, 5), owning("c", 6, 7)]
    plans = settled(everyone, config, TASKS)
    known = [
        replace(i, active=plans[i.id].active, positions=dict.fromkeys(plans[i.id].active | plans[i.id].standby, END))
        for i in everyone
    ]
    left = known[:dead] + known[dead + 1 :]
    after = assign(left, TASKS, config)
    for instance in left:
        assert after[instance.id].active <= instance.positions.keys()
