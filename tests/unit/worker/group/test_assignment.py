"""Who runs which task."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import TaskId
from pipeline.worker.group.assignment import AssignmentConfig, Instance, Plan, assign, withhold

TASKS = {TaskId(0, n): True for n in range(8)}
END = 1_000_000


def owning(name: str, *tasks: int, capacity: int = 1, **tags: str) -> Instance:
    ids = frozenset(TaskId(0, n) for n in tasks)
    return Instance(name, capacity, tags, ids, dict.fromkeys(ids, END))


def actives(plans: dict[str, Plan]) -> dict[str, list[int]]:
    return {name: sorted(task.partition for task in plan.active) for name, plan in plans.items()}


def settled(instances: list[Instance], config: AssignmentConfig, tasks: dict[TaskId, bool]) -> dict[str, Plan]:
    """What the assignment comes to once everybody did as planned, and warmed up, often enough."""
    plans: dict[str, Plan] = {}
    for _ in range(20):
        plans = withhold(assign(instances, tasks, config), instances)
        instances = [
            replace(
                instance,
                active=plans[instance.id].active,
                positions={task: END for task in plans[instance.id].active | plans[instance.id].standby if tasks[task]},
            )
            for instance in instances
        ]
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


def test_a_single_instance_has_no_standbys_of_its_own_tasks() -> None:
    plans = assign([owning("a", 0)], {TaskId(0, 0): True}, AssignmentConfig(num_standby_replicas=2))
    assert plans["a"] == Plan(frozenset({TaskId(0, 0)}))


instances = st.lists(
    st.builds(
        Instance,
        id=st.uuids().map(str),
        capacity=st.integers(1, 3),
        positions=st.dictionaries(st.sampled_from(sorted(TASKS)), st.integers(0, END), max_size=8),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda instance: instance.id,
)


@given(instances, st.integers(0, 2), st.integers(1, 4), st.data())
def test_whatever_the_start_each_task_runs_once_and_the_end_is_balanced_and_stable(
    everyone: list[Instance], standbys: int, warm_ups: int, data: st.DataObject
) -> None:
    tasks = {task: data.draw(st.booleans()) for task in TASKS}
    config = AssignmentConfig(standbys, warm_ups)
    plans = assign(everyone, tasks, config)
    assert Counter(task for plan in plans.values() for task in plan.active) == Counter(tasks.keys())
    for plan in plans.values():
        assert not plan.active & plan.standby
        assert plan.warm_up <= plan.standby
    assert sum(len(plan.warm_up) for plan in plans.values()) <= warm_ups
    final = settled(everyone, config, tasks)
    assert Counter(task for plan in final.values() for task in plan.active) == Counter(tasks.keys())
    load = [len(final[instance.id].active) / instance.capacity for instance in everyone]
    assert max(load) - min(load) <= 1
    assert not any(plan.warm_up for plan in final.values())
    copies = min(standbys, len(everyone) - 1)
    assert all(
        sum(task in plan.standby for plan in final.values()) == copies for task, has_state in tasks.items() if has_state
    )


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
