"""Programs with threads, locks, queues, futures and processes run in turns, without a change."""

from __future__ import annotations

import queue
import random
import secrets
import threading
import time
import uuid
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from riverrun.simulation.processes import PipeEnd, Processes
from riverrun.simulation.simulated import simulated
from riverrun.simulation.turns import DeadlockError, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REAL = time.monotonic


@dataclass
class Noted:
    at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


def read_clock(clock: Callable[[], float] = time.monotonic, *, other: Callable[[], float] = time.time) -> float:
    return clock() - other() * 0


@contextmanager
def history(seed: int = 1) -> Iterator[Turns]:
    began = REAL()
    with Turns(seed, stuck_s=10) as turns, simulated(turns, __name__):
        yield turns
    assert REAL() - began < 10


def test_the_clock_is_that_of_the_turns() -> None:
    with history():
        before = time.monotonic(), time.time(), time.perf_counter(), time.time_ns() / 1e9
        time.sleep(3600)
        after = time.monotonic(), time.time(), time.perf_counter(), time.time_ns() / 1e9
        assert all(3600 <= b - a < 3601 for a, b in zip(before, after, strict=True))


def test_default_arguments_and_fields_of_dataclasses_get_it_as_well() -> None:
    with history():
        noted, began = Noted(), read_clock()
        with noted.lock:
            time.sleep(3600)
        assert 3600 <= read_clock() - began < 3601
        assert 3600 <= time.monotonic() - noted.at < 3601
    assert read_clock.__defaults__ == (REAL,)
    assert time.monotonic is REAL
    assert abs(Noted().at - REAL()) < 60


def test_threads_that_take_no_turns_keep_their_clock() -> None:
    found: list[float] = []
    began = REAL()
    outside = threading.Thread(target=lambda: found.append(read_clock() - began))
    with history():
        time.sleep(3600)
        outside.start()
        outside.join()
    assert found[0] < 60


def test_randomness_comes_from_the_seed() -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        with history(seed):
            return uuid.uuid4(), secrets.token_hex(8), random.uniform(0, 1)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def lost_updates(seed: int, lock: bool) -> int:
    """Return how many of 6 updates are lost by threads that read, wait and write."""
    with history(seed):
        guard, total = threading.Lock(), [0]

        def update() -> None:
            seen = total[0]
            time.sleep(0)
            total[0] = seen + 1

        def work() -> None:
            for _ in range(3):
                if lock:
                    with guard:
                        update()
                else:
                    update()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 6 - total[0]


def test_seeds_find_a_race_and_a_lock_prevents_it() -> None:
    assert len({lost_updates(seed, lock=False) for seed in range(20)}) > 1
    assert {lost_updates(seed, lock=True) for seed in range(20)} == {0}


def test_locks_taken_in_two_orders_are_found_as_a_deadlock() -> None:
    def cross(seed: int) -> bool:
        with history(seed):
            one, other = threading.Lock(), threading.Lock()

            def take(first: threading.Lock, second: threading.Lock) -> None:
                with first, second:
                    pass

            threads = [threading.Thread(target=take, args=each) for each in ((one, other), (other, one))]
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except DeadlockError as error:
                return "in take" in str(error)
            return False

    assert {cross(seed) for seed in range(60)} == {True, False}


def test_a_lock_that_counts_can_be_taken_again_by_its_thread() -> None:
    with history():
        lock = threading.RLock()
        with lock, lock:
            assert not lock_from_another_thread(lock)
        assert lock_from_another_thread(lock)


def lock_from_another_thread(lock: threading.RLock) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=1)))
    thread.start()
    thread.join()
    return found[0]


def test_a_condition_wakes_as_many_threads_as_it_is_told_to() -> None:
    with history():
        changed, woken = threading.Condition(), list[bool]()

        def work() -> None:
            with changed:
                woken.append(changed.wait(60))

        for _ in range(3):
            threading.Thread(target=work).start()
        time.sleep(1)
        with changed:
            changed.notify(2)
        time.sleep(1)
        assert woken == [True, True]
        time.sleep(60)
        assert woken == [True, True, False]


def test_a_condition_waits_for_a_predicate() -> None:
    with history():
        changed, found = threading.Condition(), list[int]()

        def work() -> None:
            for number in range(3):
                time.sleep(1)
                with changed:
                    found.append(number)
                    changed.notify_all()

        threading.Thread(target=work).start()
        with changed:
            assert changed.wait_for(lambda: len(found) == 2, 10)
            assert not changed.wait_for(lambda: len(found) == 4, 10)


def test_events_timers_and_semaphores_work() -> None:
    with history():
        event, semaphore = threading.Event(), threading.Semaphore(1)
        timer, cancelled = threading.Timer(5, event.set), threading.Timer(1, event.set)
        timer.start()
        cancelled.start()
        cancelled.cancel()
        assert not event.wait(4)
        assert event.wait(2)
        with semaphore:
            assert not semaphore.acquire(timeout=1)
        assert semaphore.acquire(blocking=False)


def test_a_queue_delivers_in_order_and_is_empty_in_time() -> None:
    with history():
        items: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work() -> None:
            for number in range(3):
                time.sleep(1)
                items.put(number)

        threading.Thread(target=work).start()
        assert [items.get(), items.get(timeout=5), items.get()] == [0, 1, 2]
        with pytest.raises(queue.Empty):
            items.get(timeout=5)
        with pytest.raises(queue.Empty):
            items.get_nowait()
        assert items.empty()


def test_an_executor_runs_as_many_calls_at_once_as_it_has_threads() -> None:
    with history():
        began = time.monotonic()
        with ThreadPoolExecutor(2, "pool") as pool:
            outcomes = [pool.submit(time.sleep, 10) for _ in range(4)]
            assert not wait(outcomes, 5)[0]
            done, left = wait(outcomes, 15, FIRST_COMPLETED)
            assert done
            assert left
        assert all(each.done() for each in outcomes)
        assert 20 <= time.monotonic() - began < 21


def test_a_future_carries_a_result_or_an_error_between_threads() -> None:
    with history():
        future: Future[int] = Future()
        threading.Timer(1, lambda: future.set_result(7)).start()
        with pytest.raises(TimeoutError):
            future.result(0.5)
        assert future.result(5) == 7
        with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()


def echo(pipe: PipeEnd) -> None:
    while True:
        pipe.send(pipe.recv() * 2)


def test_a_process_answers_over_its_pipe_until_it_is_killed() -> None:
    with history() as turns:
        processes = Processes(turns)
        ours, theirs = processes.pipe()
        child = processes.start("echo", echo, (theirs,), ())
        theirs.close()
        ours.send(21)
        assert ours.poll(1)
        assert ours.recv() == 42
        assert not ours.poll(1)
        assert child.exitcode is None
        child.kill()
        assert child.exitcode == -9
        assert processes.wait([ours], 1) == [ours]
        with pytest.raises(EOFError):
            ours.recv()
        with pytest.raises(BrokenPipeError):
            ours.send(1)


def test_a_process_reads_the_end_of_its_pipe_when_its_parent_ends() -> None:
    with history() as turns:
        processes = Processes(turns)

        def parent() -> None:
            ours, theirs = processes.pipe()
            children.append(processes.start("echo", echo, (theirs,), ()))
            theirs.close()
            ours.close()
            time.sleep(10)

        children = list[object]()
        host = turns.start_host("parent", parent)
        time.sleep(5)
        (child,) = children
        assert child.exitcode == 1  # type: ignore[attr-defined] # EOFError
        time.sleep(10)
        assert host.is_dead
