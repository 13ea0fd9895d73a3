"""Draws a history from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.histories.history import KEYS, PARTITIONS, WORKERS, Event, History, event

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER_OF_EVENTS = 40


@dataclass
class Drawing:
    """A history that is being drawn.

    Args:
        running: Workers that have been started, neither stopped nor killed since.
    """

    random: Random
    events: list[Event] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    suspended: set[str] = field(default_factory=set)

    def add(self, name: str, *arguments: object) -> None:
        self.events.append(event(name, *arguments))

    def produce(self) -> None:
        count = self.random.randrange(1, 30)
        words = [f"{self.random.choice(KEYS)}{self.random.randrange(PARTITIONS)}" for _ in range(count)]
        self.add("produce", tuple(words))

    def start_worker(self) -> None:
        name = self.random.choice(WORKERS)
        if name not in self.running:
            self.running.add(name)
            self.add("start_worker", name)

    def stop_worker(self) -> None:
        for name in self._chosen():
            self._forget(name)
            self.add("stop_worker", name)

    def kill_worker(self) -> None:
        for name in self._chosen():
            self._forget(name)
            self.add("kill_worker", name)

    def kill_stream_thread(self) -> None:
        for name in self._chosen():
            self.add("kill_stream_thread", name, self.random.randrange(2))

    def suspend_worker(self) -> None:
        """Suspend a worker or, if it is suspended, resume it."""
        for name in self._chosen():
            self.add("resume_worker" if name in self.suspended else "suspend_worker", name)
            self.suspended ^= {name}

    def slow_worker(self) -> None:
        for name in self._chosen():
            self.add("slow_worker", name, self.random.choice([0.0, 0.01, 0.2]))

    def scale(self) -> None:
        for name in self._chosen():
            self.add("scale", name, self.random.choice([1, 2]))

    def change_faults(self) -> None:
        self.add("change_faults", self.random.choice([0.0, 0.0, 0.002, 0.02]))

    def start_run(self) -> None:
        """Start a bounded run, whether workers run or not."""
        self.add("start_run")

    def kill_run(self) -> None:
        self.add("kill_run")

    def pass_time(self) -> None:
        seconds = self.random.choice([0.1, 1, 5, 15, 60]) * self.random.random()
        self.add("pass_time", round(seconds, 2))

    def _chosen(self) -> list[str]:
        return [self.random.choice(sorted(self.running))] if self.running else []

    def _forget(self, name: str) -> None:
        self.running.discard(name)
        self.suspended.discard(name)


ALWAYS: list[tuple[int, Callable[[Drawing], None]]] = [
    (6, Drawing.produce),
    (2, Drawing.change_faults),
    (8, Drawing.pass_time),
]
WITH_WORKERS: list[tuple[int, Callable[[Drawing], None]]] = [
    (5, Drawing.start_worker),
    (1, Drawing.stop_worker),
    (2, Drawing.kill_worker),
    (1, Drawing.kill_stream_thread),
    (3, Drawing.suspend_worker),
    (1, Drawing.slow_worker),
    (1, Drawing.scale),
]
WITH_RUNS: list[tuple[int, Callable[[Drawing], None]]] = [(3, Drawing.start_run), (1, Drawing.kill_run)]


def drawn(seed: int) -> History:
    """Return the history of a seed."""
    random = Random(seed)
    cache_bytes, standbys = random.choice([0, 10_000_000]), random.choice([0, 0, 1])
    has_workers, has_runs = random.choice([(True, False), (True, True), (False, True)])
    weights, draws = zip(*ALWAYS + WITH_WORKERS * has_workers + WITH_RUNS * has_runs, strict=True)
    drawing = Drawing(random)
    for draw in random.choices(draws, weights, k=NUMBER_OF_EVENTS):
        draw(drawing)
    return History(seed, cache_bytes, standbys, has_workers, tuple(drawing.events))
