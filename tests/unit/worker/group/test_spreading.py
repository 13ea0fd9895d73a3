"""How tasks are spread over instances, or over the threads of one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.records import TaskId
from riverrun.worker.group.assignment import spread
from riverrun.worker.group.protocol import RUNNING


def tasks_of(*partitions: int) -> list[TaskId]:
    """The tasks of sub-topologies with so many partitions each."""
    return [TaskId(sub, partition) for sub, count in enumerate(partitions) for partition in range(count)]


def run_by(owners: dict[TaskId, str]) -> dict[TaskId, dict[str, int]]:
    return {task: {name: RUNNING} for task, name in owners.items()}


def counts(owners: dict[TaskId, str]) -> Counter[tuple[int, str]]:
    return Counter((task.sub_topology, name) for task, name in owners.items())


def moved(before: dict[TaskId, str], after: dict[TaskId, str]) -> int:
    return sum(before.get(task) != name for task, name in after.items())


topologies = st.lists(st.integers(1, 8), min_size=1, max_size=5).map(lambda partitions: tasks_of(*partitions))
capacities = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda sizes: {f"instance-{n}": size for n, size in enumerate(sizes)}
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[TaskId], dict[str, int], dict[TaskId, str]]:
    """Tasks, capacities, and who runs some of the tasks."""
    tasks, capacity = draw(topologies), draw(capacities)
    owned = draw(st.dictionaries(st.sampled_from(tasks), st.sampled_from(sorted(capacity)), max_size=len(tasks)))
    return tasks, capacity, owned


def test_a_second_instance_gets_half_of_each_sub_topology() -> None:
    tasks = tasks_of(4, 4)
    owners = spread(tasks, {"a": 1, "b": 1}, run_by(dict.fromkeys(tasks, "a")), {})
    assert counts(owners) == {(0, "a"): 2, (1, "a"): 2, (0, "b"): 2, (1, "b"): 2}


def test_instances_that_have_a_sub_topology_each_exchange_tasks() -> None:
    tasks = tasks_of(4, 4)
    before = {task: "ab"[task.sub_topology] for task in tasks}
    after = spread(tasks, {"a": 1, "b": 1}, run_by(before), {})
    assert counts(after) == {(0, "a"): 2, (1, "a"): 2, (0, "b"): 2, (1, "b"): 2}
    assert moved(before, after) == 4


def test_tasks_without_state_make_up_for_what_others_have() -> None:
    owners = spread(tasks_of(3), {"a": 1, "b": 1}, {}, {"a": 1})
    assert Counter(owners.values()) == {"a": 1, "b": 2}


def test_of_tasks_that_must_move_those_do_whose_state_is_there() -> None:
    tasks = tasks_of(4)
    lags = {task: {"a": RUNNING} for task in tasks}
    lags[tasks[0]]["b"] = 5
    lags[tasks[2]]["b"] = 0
    lags[tasks[1]]["c"] = 0  # full already
    owners = spread(tasks, {"a": 1, "b": 1}, {task: lags[task] for task in tasks}, {})
    assert [task for task, name in owners.items() if name == "b"] == [tasks[2], tasks[0]]


def test_an_unowned_task_goes_to_the_instance_with_most_of_its_state() -> None:
    task = TaskId(0, 0)
    assert spread([task], {"a": 1, "b": 1, "c": 1}, {task: {"a": 900, "b": 3}}, {}) == {task: "b"}


@given(situations())
def test_everybody_has_its_share_of_all_tasks_and_of_each_sub_topology(
    situation: tuple[list[TaskId], dict[str, int], dict[TaskId, str]],
) -> None:
    tasks, capacity, owned = situation
    owners = spread(tasks, capacity, run_by(owned), {})
    assert owners.keys() == set(tasks)
    each = counts(owners)
    for shares in [
        [sum(n for (_, owner), n in each.items() if owner == name) / size for name, size in capacity.items()],
        *([each[sub, name] / size for name, size in capacity.items()] for sub in {task.sub_topology for task in tasks}),
    ]:
        assert max(shares) - min(shares) <= 1


@given(situations(), st.data())
def test_what_comes_on_top_of_other_tasks_is_even_in_itself_and_together_with_them(
    situation: tuple[list[TaskId], dict[str, int], dict[TaskId, str]], data: st.DataObject
) -> None:
    tasks, capacity, owned = situation
    load = {name: data.draw(st.integers(2, 3)) for name in capacity}
    same = dict.fromkeys(capacity, 1)
    owners = Counter(spread(tasks, same, run_by(owned), load).values())
    assert max(owners[name] for name in same) - min(owners[name] for name in same) <= 1
    totals = [owners[name] + load[name] for name in same]
    assert max(totals) - min(totals) <= 1


@given(situations())
def test_nothing_moves_as_long_as_nobody_joins_or_leaves(
    situation: tuple[list[TaskId], dict[str, int], dict[TaskId, str]],
) -> None:
    tasks, capacity, owned = situation
    owners = spread(tasks, capacity, run_by(owned), {})
    assert spread(tasks, capacity, run_by(owners), {}) == owners


@given(st.integers(1, 30), st.integers(1, 6))
def test_who_joins_gets_its_share_and_nothing_else_moves(partitions: int, instances: int) -> None:
    tasks = tasks_of(partitions)
    before = spread(tasks, {f"i{n}": 1 for n in range(instances)}, {}, {})
    after = spread(tasks, {f"i{n}": 1 for n in range(instances + 1)}, run_by(before), {})
    assert moved(before, after) == partitions // (instances + 1)


@given(st.integers(1, 30), st.integers(2, 6))
def test_when_somebody_leaves_only_its_tasks_move(partitions: int, instances: int) -> None:
    tasks = tasks_of(partitions)
    before = spread(tasks, {f"i{n}": 1 for n in range(instances)}, {}, {})
    left = {task: name for task, name in before.items() if name != "i0"}
    after = spread(tasks, {f"i{n}": 1 for n in range(1, instances)}, run_by(left), {})
    assert moved(left, after) == len(before) - len(left)


@given(topologies, st.integers(1, 5))
def test_with_several_sub_topologies_hardly_more_moves_than_that(tasks: list[TaskId], instances: int) -> None:
    before = spread(tasks, {f"i{n}": 1 for n in range(instances)}, {}, {})
    after = spread(tasks, {f"i{n}": 1 for n in range(instances + 1)}, run_by(before), {})
    assert moved(before, after) <= -(-len(tasks) // (instances + 1)) + 2


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_threads_beyond_the_number_of_tasks_stay_idle(threads: int) -> None:
    tasks = tasks_of(2, 1)
    owners = spread(tasks, {str(n): 1 for n in range(threads)}, {}, {})
    assert owners.keys() == set(tasks)
    assert len(set(owners.values())) == min(threads, 3)
