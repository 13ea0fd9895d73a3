"""Brokers and processes that take turns, to try every order of the steps by which tasks change hands.

The claims, locks and producers of threads are the real ones. Each request to a broker is a turn: any other process may come
next, the answer may be lost, and a process may end or sleep at any of them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from riverrun.errors import BrokerError, OpenTransactionError, StreamsError, TaskMigratedError, UnknownOutcomeError
from riverrun.hosting.claim import Claim
from riverrun.hosting.commits import is_last
from riverrun.hosting.connected import Publication
from riverrun.hosting.ownership import ThreadProducer
from riverrun.kafka.admin import CommittedOffset
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

APP = "app-v1"
TASKS = [TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)]
END = 12
"""How many records each input has."""
_PATIENCE = 40
"""How many turns a reader waits for an open transaction before brokers abort it."""


class Ended(BaseException):
    """A process was killed."""


class Actor:
    """A process or one of its threads, which runs until its next request to a broker whenever it gets a turn.

    Args:
        name: Its name.
        run: What it does.
        actors: All actors, to which it and its threads are added.
    """

    def __init__(self, name: str, run: Callable[[], None], actors: list[Actor]) -> None:
        self.name = name
        self._actors, self._threads = actors, list[Actor]()
        actors.append(self)
        self.is_done = False
        self.loses_answer = False
        self.is_killed = False
        self.error: BaseException | None = None
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        CURRENT.actor = self
        self._go.acquire()
        try:
            if not self.is_killed:
                run()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self.error = error
        self.is_done = True
        self._stopped.release()

    def turn(self) -> None:
        """Let it continue to its next request."""
        self._go.release()
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def yield_turn(self) -> None:
        """Called by the process: wait for the next turn."""
        self._stopped.release()
        self._go.acquire()
        if self.is_killed:
            raise Ended

    def in_threads(self, runs: Iterable[Callable[[], None]]) -> None:
        """Called by the process: do several things at the same time, and wait for all of them."""
        self._threads = [Actor(f"{self.name}, {n}", run, self._actors) for n, run in enumerate(runs)]
        while not all(thread.is_done for thread in self._threads):
            self.yield_turn()

    def kill(self) -> None:
        """End it and its threads at their present requests."""
        for ending in (self, *self._threads):
            if not ending.is_done:
                ending.is_killed = True
                ending.turn()


class Mutex:
    """A lock for which an actor waits in turns (`threading.Lock`)."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            request()
        self._is_held = True

    def __exit__(self, *_error: object) -> None:
        self._is_held = False


CURRENT = threading.local()


def request() -> None:
    """Begin a request to a broker: others may come first."""
    CURRENT.actor.yield_turn()


def answered(doing: str) -> None:
    """End a request to a broker, unless its answer is lost."""
    actor = CURRENT.actor
    if actor.loses_answer:
        actor.loses_answer = False
        raise UnknownOutcomeError(doing)


@dataclass
class Transaction:
    """An open transaction: records by task, offsets to commit, and whether its commit is decided."""

    records: list[tuple[TaskId, int]] = field(default_factory=list)
    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    kept: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    is_decided: bool = False


class Brokers:
    """Offsets, transactions and what was written, with the rules of Kafka's coordinators."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = defaultdict(int)
        self.open: dict[str, Transaction] = {}
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.kept: dict[TopicPartition, CommittedOffset] = {}
        self.written: dict[TaskId, list[int]] = {task: [] for task in TASKS}

    def init(self, transactional_id: str) -> int:
        """Fence earlier producers: complete a commit that is decided, and abort any other transaction."""
        found = self.open.get(transactional_id)
        if found is not None and found.is_decided:
            self.complete(transactional_id)
        self.open.pop(transactional_id, None)
        self.epochs[transactional_id] += 1
        return self.epochs[transactional_id]

    def complete(self, transactional_id: str) -> None:
        """Write the markers of a commit that is decided."""
        done = self.open.pop(transactional_id)
        for task, offset in done.records:
            assert self.written[task] == list(range(offset)), f"{task} writes {offset} after {self.written[task]}"
            self.written[task].append(offset)
        for tp, (offset, metadata) in done.offsets.items():
            self._check(transactional_id, tp, offset)
            self.committed[tp] = CommittedOffset(offset, metadata)
        self.kept |= {tp: CommittedOffset(*commit) for tp, commit in done.kept.items()}

    def _check(self, transactional_id: str, tp: TopicPartition, offset: int) -> None:
        task = TaskId(0, tp.partition)
        assert offset == len(self.written[task]), f"{transactional_id} commits {tp}@{offset}"
        if transactional_id != f"{APP}-{task}":
            owner = OffsetMetadata.decode(self.committed[tp].metadata).owner
            assert transactional_id == f"{APP}-{owner}", f"{transactional_id} commits {tp} of {owner or 'nobody'}"

    def forget(self, tasks: Iterable[TaskId]) -> set[TaskId]:
        """Delete committed offsets of an application that nobody runs. Return the tasks about which nothing is left."""
        for transactional_id in list(self.open):
            self.init(transactional_id)
        tps = [input_of(task) for task in tasks]
        for tp in tps:
            self.committed.pop(tp, None)
        return {TaskId(0, tp.partition) for tp in tps if tp in self.kept and not is_last(self.kept[tp])}

    def is_pending(self, tps: Iterable[TopicPartition]) -> bool:
        return any(tp in transaction.offsets for transaction in self.open.values() for tp in tps)

    def expire(self, tps: Iterable[TopicPartition]) -> None:
        """End transactions that have been open for too long."""
        for transactional_id, transaction in list(self.open.items()):
            if transaction.offsets.keys() & set(tps):
                self.init(transactional_id)


class Producer:
    """A transactional producer of the model's brokers (`TransactionalProducer`)."""

    def __init__(self, brokers: Brokers, transactional_id: str) -> None:
        self._brokers, self._id = brokers, transactional_id
        self._epoch = -1
        self._records: list[tuple[TaskId, int]] = []

    def init(self) -> None:
        request()
        self._epoch = self._brokers.init(self._id)
        try:
            answered("init")
        except UnknownOutcomeError as error:
            message = "no answer"
            raise BrokerError(message, retriable=True) from error

    def new_sender(self) -> Any:
        return SimpleNamespace(send=lambda task, offset: self._records.append((task, offset)))

    def flush(self) -> None:
        self._require()
        if self._records:
            self._brokers.open.setdefault(self._id, Transaction()).records[:] = self._records

    def commit(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], kept: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        request()
        self.flush()
        transaction = self._brokers.open.setdefault(self._id, Transaction())
        transaction.offsets.update(offsets)
        transaction.kept.update(kept)
        answered("send offsets")
        request()
        self._require()
        found = self._brokers.open.get(self._id)
        if found is None:  # brokers have aborted it
            message = "expired"
            raise TaskMigratedError(message)
        found.is_decided, self._records = True, []
        request()
        if self._brokers.open.get(self._id) is found:
            self._brokers.complete(self._id)
        answered("commit")

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _require(self) -> None:
        if self._epoch != self._brokers.epochs[self._id]:
            message = "fenced"
            raise TaskMigratedError(message)


class Connected:
    """An application of one input on the model's brokers (`ConnectedApplication`)."""

    id = APP

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.layout = SimpleNamespace(tasks={task: (input_of(task),) for task in TASKS})
        self.application = SimpleNamespace(
            id=APP,
            kafka={},
            published=None,
            dead_letters=None,
            config=SimpleNamespace(streams=SimpleNamespace(producer={}, processing_guarantee="exactly_once_v2")),
            task_spec=lambda task, inputs: SimpleNamespace(id=task, inputs=inputs, topics=()),
        )
        self.admin = SimpleNamespace(topic_ids=lambda _topics: {})

    def committed(
        self, tps: Iterable[TopicPartition], patience_s: float = 90.0
    ) -> dict[TopicPartition, CommittedOffset]:
        asked, waited = list(tps), 0
        request()
        while self._brokers.is_pending(asked):
            if patience_s <= 1:
                message = "open"
                raise OpenTransactionError(message)
            waited += 1
            if waited > _PATIENCE:
                self._brokers.expire(asked)
            request()
        kept = {tp: self._brokers.kept[tp] for tp in asked if tp in self._brokers.kept}
        return {tp: commit for tp, commit in kept.items() if is_last(commit)} | self._answer(asked)

    def noted(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        request()
        return self._answer(tps)

    def _answer(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The present offsets; they may have changed when the answer arrives."""
        found = {tp: self._brokers.committed[tp] for tp in tps if tp in self._brokers.committed}
        request()
        return found

    def publication(self) -> Publication:
        return Publication({}, None)

    def require_publishing(self) -> None:
        pass


def input_of(task: TaskId) -> TopicPartition:
    return TopicPartition("in", task.partition)


class StreamThread:
    """A stream thread, which owns tasks as `TaskManager` does; whichever it is given, others may have them too."""

    def __init__(self, connected: Any, tasks: Iterable[TaskId], rounds: int, leaves_after: int) -> None:
        self._producer = ThreadProducer(connected.application)
        self._claims = {task: Claim(connected, task, MockClock(), thread=self._producer) for task in tasks}
        self._rounds, self._leaves_after = rounds, leaves_after
        self._failed: set[TaskId] = set()
        self._todo = set(self._claims)
        self._positions: dict[TaskId, int] = {}

    def run(self) -> None:
        for number in range(self._rounds):
            CURRENT.actor.in_threads([partial(self._take_over, task) for task in sorted(self._todo)])
            self._commit(leaving=self._positions.keys() if number == self._leaves_after else ())
            if number == self._leaves_after:
                return

    def _take_over(self, task: TaskId) -> None:
        claim = self._claims[task]
        try:
            if task in self._failed:
                claim.check_owner()
            claimed = claim.take_over()
        except TaskMigratedError:
            self._todo.discard(task)
        except StreamsError:
            self._failed.add(task)
        else:
            if claimed.producer.is_closed:
                self._failed.add(task)
                return
            self._todo.discard(task)
            self._positions[task] = claimed.starts[input_of(task)]

    def _commit(self, leaving: Iterable[TaskId]) -> None:
        busy = [task for task, at in self._positions.items() if at < END]
        released = list(leaving)
        if not busy and not released:
            return
        producer = self._producer.present()
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        send = producer.new_sender().send
        for task in busy:
            at = self._positions[task]
            send(task, at)  # type: ignore[call-arg,arg-type]
            metadata = OffsetMetadata(at, owner=producer.owner).encode()
            self._claims[task].begin_commit({input_of(task): (at + 1, metadata)})
            offsets[input_of(task)] = (at + 1, metadata)
        left = {tp: commit for task in released for tp, commit in self._claims[task].released().items()}
        try:
            producer.flush()
            producer.commit(offsets, left)
        except StreamsError:
            self._failed |= self._positions.keys()
            self._todo |= self._positions.keys()
            self._positions.clear()
            self._producer.discard(abort=False)
        else:
            for task in busy:
                self._claims[task].end_commit()
                self._positions[task] += 1


class BoundedRun:
    """An attempt of a bounded run at one task, which commits a few records in one transaction under the task's lock."""

    def __init__(self, connected: Any, task: TaskId, records: int) -> None:
        self._claim = Claim(connected, task, MockClock())
        self._task, self._records = task, records

    def run(self) -> None:
        try:
            claimed = self._claim.take_over()
            at = claimed.starts[input_of(self._task)]
            end = min(END, at + self._records)
            if at == end:
                return
            send = claimed.producer.new_sender().send
            for offset in range(at, end):
                send(self._task, offset)  # type: ignore[call-arg,arg-type]
            metadata = OffsetMetadata(end).encode()
            claimed.producer.commit({input_of(self._task): (end, metadata)})
        except StreamsError:
            pass  # the next attempt is another one
