"""The life of tasks in a stream thread: assigned, revoked, failed, given up."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.config import StreamsConfig
from riverrun.errors import CorruptStateError, SetAsideError, StateError, TaskMigratedError
from riverrun.hosting.active_task import TaskState
from riverrun.hosting.restoring import Missing
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId, Whole
from riverrun.runtime.task import TaskCommit
from riverrun.state.memory import MemoryBackend
from riverrun.worker.states import TaskCounts
from riverrun.worker.tasks.fetching import Undisturbed
from riverrun.worker.tasks.state_updater import StateUpdater
from riverrun.worker.tasks.task_manager import TaskManager
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)


class Producer:
    """The producer of all tasks, of which every step is noted. A discarded one goes on under the same name."""

    def __init__(self, steps: list[str]) -> None:
        self.is_closed = False
        self.doubted_since = None
        self._steps = steps

    def present(self) -> Producer:
        return self

    def flush(self) -> None:
        pass

    def commit(self, _offsets: Any, _released: Any) -> None:
        self._steps.append("commit")

    def discard(self, *, abort: bool) -> None:
        self._steps.append("abort" if abort else "discard")


class Claimed:
    """A task without inputs, of which every step is noted; brokers answer when they may. It is its own claim."""

    def __init__(self, task_id: TaskId, steps: list[str]) -> None:
        self.id, self._steps = task_id, steps
        self.producer = Producer(steps)
        self.prepared = TaskCommit({}, ())
        self.released = dict
        self.is_lost = False
        self.claim = self.task = self
        self.inputs = ()
        self.answered = threading.Event()
        self.answered.set()
        self.refusals: list[Exception] = []
        self.restored_records, self.committed_offsets, self.dropped = 0, dict[Any, int](), Counter[str]()
        self.state = TaskState.CREATED
        self.needs_commit, self.commit_requested, self.stream_time = True, False, -1
        self.measured = self.starts = self.sent = dict
        self.held_back_bytes = lambda: 0
        self.awaits_lookups, self.settle = False, lambda: True
        self.aside: tuple[Any, ...] = ()
        self.sets_aside: list[SetAsideError] = []

    def __getattr__(self, step: str) -> Callable[..., None]:
        return lambda **options: self._steps.append(" ".join([f"{step} {self.id}", *map(str, options.values())]))

    def take_over(self, _backend: Any) -> Any:
        self.answered.wait(60)
        if self.refusals:
            raise self.refusals.pop()
        self._steps.append(f"take_over {self.id}")
        return self

    def check_owner(self) -> None:
        self._steps.append(f"check_owner {self.id}")
        if self.is_lost:
            message = "another owner has committed"
            raise TaskMigratedError(message)

    def note_changelog_ends(self, _ends: Any) -> None:
        pass

    def initialize(self) -> Missing:
        self.state = TaskState.RESTORING
        return Missing(MemoryBackend(), {}, None, Whole(0, 0))

    def start(self) -> None:
        if self.sets_aside:
            raise self.sets_aside.pop()
        self.state = TaskState.RUNNING
        self._steps.append(f"start {self.id}")

    def suspend(self) -> None:
        self.state = TaskState.SUSPENDED


class Absent:
    """Standbys, brokers and fetching of a manager that has only to do with tasks that run."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps
        self.tasks = frozenset[TaskId]()
        self.are_there, self.gives_up = True, False

    def begin(self, claimed: Any) -> None:
        self._steps.append(f"fetch {claimed.id}")

    def end(self, claimed: Any) -> None:
        self._steps.append(f"fetch {claimed.id} no more")

    def run_once(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Managed:
    """A manager, and the steps that its tasks have taken."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.created: dict[TaskId, Claimed] = {}
        others: Any = Absent(self.steps)
        admin: Any = None
        self.counts = TaskCounts()
        self.manager = TaskManager(
            self._claim,
            Producer(self.steps),  # type: ignore[arg-type]
            StateUpdater(admin, Kafka({}), 60_000, lambda *_: None, lambda claimed: claimed),  # type: ignore[arg-type,return-value]
            standbys=others,
            fetching=others,
            counts=self.counts,
            brokers=others,
            interruptions=Undisturbed(),
            streams=StreamsConfig(),
            gives_up=True,
        )

    def _claim(self, task_id: TaskId) -> Any:
        return self.created.setdefault(task_id, Claimed(task_id, self.steps))

    def assign(self, *task_ids: TaskId) -> None:
        self.manager.assign(frozenset(task_ids), frozenset())

    def run(self) -> None:
        self.until(lambda: not self.manager.is_starting_tasks)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the manager work until something holds."""
        until(condition, f"got on: {self.steps}", turn=lambda: self.manager.update(1, 0.01))

    def taken_steps(self) -> list[str]:
        """The events since the last call."""
        steps, self.steps[:] = self.steps.copy(), []
        return steps


@pytest.fixture
def managed() -> Iterator[Managed]:
    made = Managed()
    yield made
    for claimed in made.created.values():
        claimed.answered.set()
    made.manager.close()


def test_a_task_is_taken_over_then_fetched_for_and_committed_before_it_is_closed(managed: Managed) -> None:
    managed.assign(FIRST)
    assert managed.manager.active == {FIRST}
    assert not managed.manager.running
    managed.run()
    assert managed.taken_steps() == ["take_over 0_0", "start 0_0", "fetch 0_0"]
    assert list(managed.manager.running) == [FIRST]
    managed.assign(SECOND)
    assert managed.taken_steps()[:5] == [
        "prepare_commit 0_0",
        "commit",
        "finish_commit 0_0",
        "fetch 0_0 no more",
        "close 0_0",
    ]
    assert managed.manager.active == {SECOND}
    assert managed.manager.commits.done == 1
    assert not managed.manager.commits.last


def test_a_fenced_thread_gives_up_those_tasks_that_another_owner_has(managed: Managed) -> None:
    managed.assign(FIRST, SECOND)
    managed.run()
    managed.taken_steps()
    managed.created[FIRST].is_lost = True
    managed.manager.fail(TaskMigratedError("fenced"))
    assert managed.taken_steps() == [
        "fetch 0_0 no more",
        "close 0_0",
        "fetch 0_1 no more",
        "close 0_1",
        "discard",
    ]
    managed.run()
    assert managed.manager.active == set(managed.manager.running) == {SECOND}
    assert sorted(managed.taken_steps()) == [
        "check_owner 0_0",
        "check_owner 0_1",
        "fetch 0_1",
        "start 0_1",
        "take_over 0_1",
    ]


def test_a_task_that_fails_starts_over_unless_another_owner_has_it(managed: Managed) -> None:
    managed.assign(FIRST)
    managed.run()
    managed.taken_steps()
    managed.manager.fail(CorruptStateError("damaged"))
    assert managed.manager.restoring == {FIRST: None}
    managed.run()
    assert managed.taken_steps() == [
        "fetch 0_0 no more",
        "close 0_0",
        "discard",
        "check_owner 0_0",
        "take_over 0_0",
        "start 0_0",
        "fetch 0_0",
    ]


def test_all_tasks_of_a_thread_start_over_without_the_record_that_one_sets_aside(managed: Managed) -> None:
    managed.assign(FIRST, SECOND)
    managed.run()
    managed.taken_steps()
    aside = SimpleNamespace(task_id=SECOND)
    managed.manager.fail(SetAsideError("set aside", aside))
    assert (managed.created[FIRST].aside, managed.created[SECOND].aside) == ((), (aside,))
    managed.run()
    steps = managed.taken_steps()
    assert steps[:5] == ["fetch 0_0 no more", "close 0_0", "fetch 0_1 no more", "close 0_1", "discard"]
    assert {"start 0_0", "start 0_1"} < set(steps)


def test_what_a_task_did_after_its_last_commit_is_not_counted_if_it_starts_over(managed: Managed) -> None:
    managed.assign(FIRST)
    managed.run()
    for late in (1, 3):
        managed.counts.processed(FIRST, 5, 0.1)
        managed.created[FIRST].dropped = Counter(late=late)
        if late == 1:
            managed.manager.commit_all()
    before = managed.counts.summary(managed.manager.running.values(), 0, 0)
    assert (before.processed, before.dropped) == (10, {"late": 3})
    managed.manager.fail(SetAsideError("set aside", SimpleNamespace(task_id=FIRST)))
    after = managed.counts.summary(managed.manager.running.values(), 0, 0)
    assert (after.processed, after.dropped) == (5, {"late": 1})


def test_a_record_may_be_set_aside_while_a_task_starts(managed: Managed) -> None:
    managed.created[FIRST] = claimed = Claimed(FIRST, managed.steps)
    claimed.sets_aside.append(SetAsideError("a row that is gone", SimpleNamespace(task_id=FIRST)))
    managed.assign(FIRST)
    managed.until(lambda: "discard" in managed.steps)
    managed.run()
    assert len(claimed.aside) == 1
    assert managed.taken_steps()[-2:] == ["start 0_0", "fetch 0_0"]


def test_a_task_restored_for_a_producer_that_was_discarded_is_taken_over_again(managed: Managed) -> None:
    managed.created[FIRST] = claimed = Claimed(FIRST, managed.steps)
    claimed.producer.is_closed = True
    managed.assign(FIRST)
    managed.until(lambda: "close 0_0" in managed.steps)
    claimed.producer.is_closed = False
    assert managed.taken_steps() == ["take_over 0_0", "close 0_0"]
    managed.run()
    assert managed.taken_steps() == ["check_owner 0_0", "take_over 0_0", "start 0_0", "fetch 0_0"]


def test_a_task_whose_state_cannot_be_opened_ends_the_thread(managed: Managed) -> None:
    managed.assign(FIRST)
    managed.run()
    managed.created[SECOND] = refused = Claimed(SECOND, managed.steps)
    refused.refusals.append(StateError("full"))
    managed.assign(FIRST, SECOND)
    with pytest.raises(StateError, match="full"):
        managed.run()
    assert managed.manager.active == {FIRST}


def test_a_task_that_is_revoked_while_brokers_are_silent_closes_when_they_answer(managed: Managed) -> None:
    managed.created[FIRST] = claimed = Claimed(FIRST, managed.steps)
    claimed.answered.clear()
    managed.assign(FIRST)
    managed.assign()
    assert managed.manager.is_closing_tasks
    assert not managed.manager.is_starting_tasks
    claimed.answered.set()
    managed.manager.wait_until_closed({FIRST})
    assert managed.taken_steps() == ["take_over 0_0", "close 0_0", "release 0_0"]
    assert managed.manager.active == frozenset()


def test_a_task_that_is_wanted_again_before_it_is_closed_goes_on(managed: Managed) -> None:
    managed.created[FIRST] = claimed = Claimed(FIRST, managed.steps)
    claimed.answered.clear()
    managed.assign(FIRST)
    managed.assign()
    managed.assign(FIRST)
    claimed.answered.set()
    managed.run()
    assert managed.taken_steps() == ["take_over 0_0", "start 0_0", "fetch 0_0"]
