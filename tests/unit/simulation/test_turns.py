"""Actors take turns: one at a time, in an order that the seed decides, under one clock."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from riverrun.simulation.processes import Processes
from riverrun.simulation.turns import DeadlockError, Killed, StuckTurnError, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def order_of(seed: int, *, rounds: int = 3) -> tuple[list[str], int]:
    """Return the order in which three actors take turns, and the checksum of the history."""
    found: list[str] = []
    with Turns(seed) as turns:

        def take_turns(name: str) -> Callable[[], None]:
            def run() -> None:
                for _ in range(rounds):
                    turns.sleep(0)
                    found.append(name)

            return run

        actors = [turns.start(take_turns(name), name) for name in "abc"]
        turns.wait_until(lambda: all(actor.has_ended for actor in actors))
        return found, turns.trace


def steps(*calls: Callable[[], object]) -> Callable[[], None]:
    """Return a function that makes some calls."""

    def run() -> None:
        for call in calls:
            call()

    return run


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise `KeyboardInterrupt` in this thread, as Ctrl-C does, or the handler of a time limit."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_seed_always_makes_the_same_history() -> None:
    assert order_of(7) == order_of(7)


def test_different_seeds_make_different_histories() -> None:
    assert len({tuple(order_of(seed)[0]) for seed in range(20)}) > 10


def test_the_clock_jumps_over_times_in_which_all_actors_wait() -> None:
    began = time.monotonic()
    with Turns(1) as turns:
        before_ns = turns.now_ns
        turns.sleep(86_400)
        assert 86_400 <= (turns.now_ns - before_ns) / 1e9 < 86_401
    assert time.monotonic() - began < 10


def test_actors_wake_in_the_order_of_their_times() -> None:
    woken: list[int] = []

    def sleeper(turns: Turns, seconds: int) -> Callable[[], None]:
        def run() -> None:
            turns.sleep(seconds)
            woken.append(seconds)

        return run

    with Turns(3) as turns:
        for seconds in (30, 10, 20):
            turns.start(sleeper(turns, seconds), f"sleeper-{seconds}")
        turns.sleep(60)
    assert woken == [10, 20, 30]


def test_a_wait_ends_as_soon_as_its_condition_is_true() -> None:
    found: list[str] = []
    with Turns(1) as turns:
        before_ns = turns.now_ns
        turns.start(steps(lambda: turns.sleep(5), lambda: found.append("x")), "giver")
        assert turns.wait_until(lambda: bool(found), 60)
        assert 5 <= (turns.now_ns - before_ns) / 1e9 < 6
        assert not turns.wait_until(lambda: False, 1)


def test_a_deadlock_is_reported_with_the_place_of_every_actor() -> None:
    def waits_for_ever() -> None:
        turns.wait_until(lambda: False)

    with Turns(1) as turns:
        turns.start(waits_for_ever, "waiter")
        with pytest.raises(DeadlockError, match="Seed 1: all actors wait") as raised:
            turns.wait_until(lambda: False)
    assert "waiter:\n" in str(raised.value)
    assert "in waits_for_ever" in str(raised.value)
    assert "in test_a_deadlock_is_reported" in str(raised.value)


def test_a_killed_host_does_nothing_more() -> None:
    did: list[str] = []

    def work() -> None:
        try:
            while True:
                turns.sleep(1)
                did.append("worked")
        except Exception:  # noqa: BLE001 - catches errors, as hosts do
            did.append("caught")
        finally:
            turns.sleep(1)
            did.append("cleaned up")

    with Turns(1) as turns:
        host = turns.start_host("worker", steps(lambda: turns.start(work, "thread"), work))
        turns.sleep(3.5)
        turns.kill(host)
        before = list(did)
        turns.sleep(10)
        assert did == before == ["worked"] * 6
        assert isinstance(host.error, Killed)
        assert not turns.hosts


def test_a_host_that_is_killed_before_its_first_turn_does_nothing() -> None:
    did: list[str] = []
    with Turns(1) as turns:
        host = turns.start_host("worker", lambda: did.append("began"))
        turns.kill(host)
        turns.sleep(1)
        assert isinstance(host.error, Killed)
    assert not did


def test_a_host_may_be_killed_by_an_actor_of_a_host_that_it_has_started() -> None:
    did: list[str] = []
    with Turns(1, stuck_s=2) as turns:
        parent = turns.start_host("worker", steps(lambda: turns.sleep(60), lambda: did.append("worker continued")))
        turns.sleep(1)
        kill = steps(lambda: turns.sleep(1), lambda: turns.kill(parent), lambda: did.append("child continued"))
        child = turns.start_host("child", kill, parent=parent)
        assert turns.wait_until(lambda: parent.is_dead and child.is_dead, 10)
        turns.sleep(1)
    assert not did
    assert isinstance(parent.error, Killed)


def test_a_host_that_kills_itself_ends_at_once() -> None:
    did: list[str] = []
    with Turns(1) as turns:
        host = turns.start_host("worker", steps(lambda: turns.kill(turns.host), lambda: did.append("continued")))
        turns.sleep(1)
        assert host.is_dead
    assert not did


class Held:
    """An object that holds a file, in a circle of references, as stores are."""

    def __init__(self, closed: list[str]) -> None:
        self.circle, self._closed = self, closed

    def __del__(self) -> None:
        self._closed.append("closed")


def test_files_of_a_host_that_kills_itself_are_closed_before_anything_else_happens() -> None:
    closed: list[str] = []
    with Turns(1) as turns:

        def die() -> None:
            held = Held(closed)
            turns.sleep(1)
            assert held.circle is held
            turns.kill(turns.host)

        host = turns.start_host("worker", die)
        turns.wait_until(lambda: host.is_dead)
        assert closed == ["closed"]


def test_the_end_of_a_host_ends_the_hosts_that_it_has_started() -> None:
    with Turns(1) as turns:
        parent = turns.start_host("parent", lambda: turns.sleep(100))
        child = turns.start_host("child", lambda: turns.sleep(1000), parent=parent)
        turns.sleep(50)
        assert not child.is_dead
        turns.sleep(51)
        assert parent.is_dead
        assert child.is_dead


def test_a_suspended_host_takes_no_turns_until_it_is_resumed() -> None:
    beats: list[float] = []

    def beat() -> None:
        while True:
            turns.sleep(1)
            beats.append((turns.now_ns - began_ns) / 1e9)

    with Turns(1) as turns:
        began_ns = turns.now_ns
        host = turns.start_host("worker", beat)
        turns.sleep(3.5)
        turns.suspend(host)
        turns.sleep(100)
        assert len(beats) == 3
        turns.suspend(host, is_suspended=False)
        turns.sleep(2)
        assert len(beats) == 5
        assert beats[3] > 103


def test_a_host_that_hangs_takes_no_turns_for_so_long() -> None:
    beats: list[float] = []

    def beat() -> None:
        if len(beats) == 3:
            turns.hang(turns.host, 100)
        turns.sleep(1)
        beats.append((turns.now_ns - began_ns) / 1e9)
        beat()

    with Turns(1) as turns:
        began_ns = turns.now_ns
        turns.start_host("worker", beat)
        turns.sleep(106)
    assert [int(each) for each in beats] == [1, 2, 3, 103, 104, 105]


def test_a_slow_host_takes_its_turns_late() -> None:
    def rounds(lag_s: float) -> float:
        with Turns(1) as turns:
            before_ns = turns.now_ns
            host = turns.start_host("worker", steps(*[lambda: turns.sleep(0.01)] * 100))
            host.lag_s = lag_s
            turns.wait_until(lambda: host.is_dead)
            return (turns.now_ns - before_ns) / 1e9

    assert rounds(0) < 2
    assert rounds(1) > 20


def test_an_actor_that_waits_for_something_else_is_reported() -> None:
    real = threading.Event()

    def waits_outside() -> None:
        real.wait()

    with Turns(1, stuck_s=0.2) as turns:
        turns.start(waits_outside, "outsider")
        with pytest.raises(StuckTurnError, match="outsider keeps the turn") as raised:
            turns.sleep(1)
        real.set()
    assert "in waits_outside" in str(raised.value)


def test_an_error_of_an_actor_ends_that_actor_alone() -> None:
    with Turns(1) as turns:
        turns.start(lambda: int("x"), "faulty")
        turns.sleep(1)
        assert [(name, type(error)) for name, error in turns.errors] == [("main/faulty", ValueError)]


def test_an_interrupt_during_the_turn_of_another_gives_the_turn_back() -> None:
    def work() -> None:
        while True:
            time.sleep(0.01)
            turns.sleep(1)

    with Turns(1) as turns:
        turns.start(work, "busy")
        with interrupted_after(0.1), pytest.raises(KeyboardInterrupt):
            turns.sleep(86_400)
        before_ns = turns.now_ns
        turns.sleep(10)
        assert 10 <= (turns.now_ns - before_ns) / 1e9 < 11


def test_an_interrupt_ends_the_wait_for_an_actor_that_keeps_the_turn() -> None:
    real = threading.Event()

    def test() -> None:
        with Turns(1, stuck_s=0.3) as turns:
            turns.start(real.wait, "outsider")
            with interrupted_after(0.1):
                turns.sleep(1)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        test()
    assert time.monotonic() - began < 5
    real.set()


def test_a_process_gets_copies_of_its_arguments() -> None:
    given: list[str] = []
    with Turns(1) as turns:
        child = Processes(turns).start("child", lambda mine: mine.append("x"), [], [given])
        child.join()
        assert child.exitcode == 0
        with pytest.raises(TypeError, match="cannot pickle"):
            Processes(turns).start("child", lambda _lock: None, [], [threading.Lock()])
    assert not given
