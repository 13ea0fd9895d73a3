"""Draws a history from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from riverrun.simulation.faults import Fault
from tests.histories.history import KEYS, PARTITIONS, WORKERS, Event, History, event

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER_OF_EVENTS = 25
OWN_REQUESTS = [
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "ListOffsets",
    "EndTxn",
    "Heartbeat",
]
"""Requests of an owner."""
TAKEOVER_REQUESTS = [
    "InitProducerId",
    "InitProducerId",
    "InitProducerId",
    "OffsetFetch",
    "ListOffsets",
    "EndTxn",
    "Fetch",
]
"""Requests of a host that takes tasks over; the first one is drawn most often."""
REPLAY_REQUESTS = ["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn", "ListOffsets", "Fetch"]
SKIP_REQUESTS = [*REPLAY_REQUESTS, "InitProducerId", "OffsetFetch", "TxnOffsetCommit"]


@dataclass
class Drawing:
    """A history that is being drawn.

    Args:
        running: Workers that have been started, neither stopped nor killed since.
    """

    random: Random
    events: list[Event] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    runs: int = 0
    suspended: set[str] = field(default_factory=set)

    def add(self, name: str, *arguments: object) -> None:
        self.events.append(event(name, *arguments))

    def produce(self) -> None:
        self.add("produce", self._records(self.random.randrange(1, 30)))

    def _records(self, count: int) -> tuple[str, ...]:
        return tuple(f"{self.random.choice(KEYS)}{self.random.randrange(PARTITIONS)}" for _ in range(count))

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
        self.runs += 1
        self.add("start_run")

    def kill_run(self) -> None:
        self.add("kill_run")

    def lose_disk(self) -> None:
        """Kill a worker, and delete its local state."""
        for name in self._chosen():
            self._forget(name)
            self.add("kill_worker", name)
            self.add("lose_disk", name)

    def return_late(self) -> None:
        """Suspend an owner at one of its requests, and resume it in the middle of its successor's takeover."""
        name, successor = self.random.sample(WORKERS, 2)
        self.produce()
        for each in sorted({name, successor} - self.running):
            self.add("start_worker", each)
        self.running |= {name, successor}
        self.add("pass_time", self.random.choice([0.5, 4.0]))
        self.produce()
        self._at(name, self.random.choice(OWN_REQUESTS), event("suspend_worker", name), 0.01)
        self.add("pass_time", self.random.choice([1.0, 3.0]))
        self._resume_during(successor, name)
        self.add("pass_time", self.random.choice([8.0, 12.0]))

    def take_over_late(self) -> None:
        """Suspend a worker in the middle of its takeover, and resume it when another one has the tasks."""
        name, successor = self.random.sample(WORKERS, 2)
        for each in sorted({name, successor} & self.running):
            self._forget(each)
            self.add("kill_worker", each)
        self.produce()
        self._at(name, self.random.choice(TAKEOVER_REQUESTS), event("suspend_worker", name), 0.01)
        self.add("start_worker", name)
        self.add("pass_time", self.random.choice([1.0, 7.0]))
        self.add("start_worker", successor)
        self.running |= {name, successor}
        if self.random.random() < 0.5:
            self._resume_during(successor, name)
        self.add("pass_time", self.random.choice([8.0, 12.0]))
        self.produce()
        self.add("pass_time", 1.0)
        self.add("resume_worker", name)
        self.add("pass_time", 5.0)

    def die_within_a_commit(self) -> None:
        """Hold a request of a commit, and kill its worker meanwhile."""
        for name in self._started():
            self._forget(name)
            request = self.random.choice(["EndTxn", "EndTxn", "TxnOffsetCommit", "AddOffsetsToTxn"])
            self.add("plan_fault", name, request, self.random.choice([1, 2, 2, 3]), Fault(delay_s=4.0))
            self.produce()
            self.add("pass_time", self.random.choice([0.5, 2.0]))
            self.produce()
            self.add("pass_time", 1.0)
            self.add("kill_worker", name)
            self.start_worker()
            self.add("pass_time", 8.0)

    def lose_trickled(self) -> None:
        """Write records one by one, and lose the disk of the worker that has processed them."""
        for name in self._started():
            self.add("trickle", self._records(20), self.random.choice([0.03, 0.1]))
            self.add("kill_worker", name)
            self.add("lose_disk", name)
            self.add("start_worker", name)
            self.add("pass_time", 8.0)

    def _started(self) -> list[str]:
        """Return a worker that runs, which is started if none does."""
        if not self.running:
            self.start_worker()
            self.add("pass_time", 3.0)
        return self._chosen()

    def _resume_during(self, successor: str, name: str) -> None:
        self.suspended.add(name)
        delay_s = self.random.choice([0.05, 0.5, 3.0])
        self._at(successor, self.random.choice(TAKEOVER_REQUESTS), event("resume_worker", name), delay_s)

    def cut_off(self) -> None:
        """Let no request, or no answer, of a worker pass, perhaps from a certain request on."""
        for name in self._chosen():
            is_lost_after = self.random.random() < 0.5
            fault = Fault(is_lost_before=not is_lost_after, is_lost_after=is_lost_after)
            self._draw_act(name, event("cut_off", name, self.random.choice([2.0, 20.0, 45.0, 90.0]), fault))

    def kill_at_request(self) -> None:
        for name in self._chosen():
            self._forget(name)
            self._at(name, self.random.choice(OWN_REQUESTS + TAKEOVER_REQUESTS), event("kill_worker", name), 0.0)

    def kill_run_at_request(self) -> None:
        """Start a bounded run that dies at one of its requests."""
        name = f"run-{self.runs}"
        self._at(name, self.random.choice(OWN_REQUESTS + TAKEOVER_REQUESTS), event("kill_run_named", name), 0.0)
        self.start_run()

    def cut_off_run(self) -> None:
        """Start a bounded run that is out of reach for some time from one of its requests on."""
        name, is_lost_after = f"run-{self.runs}", self.random.random() < 0.5
        fault = Fault(is_lost_before=not is_lost_after, is_lost_after=is_lost_after)
        act = event("cut_off", name, self.random.choice([2.0, 20.0, 45.0, 90.0]), fault)
        self._at(name, self.random.choice(OWN_REQUESTS), act, 0.0)
        self.start_run()

    def hang_run(self) -> None:
        """Start a bounded run that hangs at one of its requests, and others meanwhile."""
        hang_s = self.random.choice([2.0, 15.0, 40.0])
        self._hang(f"run-{self.runs}", self.random.choice(OWN_REQUESTS + TAKEOVER_REQUESTS), hang_s)
        self.produce()
        self.start_run()
        self.add("pass_time", self.random.choice([1.0, 12.0]))
        self.produce()
        self.start_run()
        self.add("pass_time", self.random.choice([1.0, hang_s]))

    def hang_worker(self) -> None:
        for name in self._chosen():
            self._hang(name, self.random.choice(OWN_REQUESTS), self.random.choice([2.0, 7.0, 15.0]))
            self.produce()
            self.add("pass_time", self.random.choice([1.0, 8.0]))

    def forget_words(self) -> None:
        """Let some words be unknown for a while, and replay their letters, perhaps twice at once, or by a host that hangs."""
        self.add("forget_words", self.random.choice([KEYS[:2], KEYS[3:], KEYS]))
        self.produce()
        self.add("pass_time", self.random.choice([0.5, 3.0]))
        self.add("forget_words", self.random.choice(["", "", KEYS[:1]]))
        for _ in range(self.random.choice([1, 2])):
            self.produce()
            if self.random.random() < 0.5:
                hang_s = self.random.choice([2.0, 15.0, 30.0])
                self._hang(f"replay-{self.runs}", self.random.choice(REPLAY_REQUESTS), hang_s)
            self.runs += 1
            self.add("start_replay")
            self.add("pass_time", self.random.choice([0.1, 1.0]))

    def skip_next(self) -> None:
        """Skip the next record, perhaps by a host that hangs, and process the others meanwhile."""
        for name in sorted(self.running):
            self._forget(name)
            self.add("kill_worker", name)
        self.produce()
        self.add("pass_time", 8.0)
        if self.random.random() < 0.7:
            self._hang(f"skip-{self.runs}", self.random.choice(SKIP_REQUESTS), self.random.choice([2.0, 15.0, 30.0]))
        self.runs += 1
        self.add("start_skip", self.random.randrange(PARTITIONS))
        self.add("pass_time", self.random.choice([0.1, 1.0]))
        self.start_run() if self.random.random() < 0.7 else self.start_worker()
        self.add("pass_time", self.random.choice([1.0, 12.0]))

    def _hang(self, host: str, request: str, seconds: float) -> None:
        self.add("hang_at", host, request, self.random.choice([1, 1, 2, 3, 4, 5, 6]), seconds)

    def _draw_act(self, name: str, act: Event) -> None:
        if self.random.random() < 0.3:
            self.events.append(act)
        else:
            self._at(name, self.random.choice(OWN_REQUESTS), act, 0.0)
            self.produce()
            self.add("pass_time", 1.0)

    def lose_request(self) -> None:
        """Lose one request of a worker, or its answer."""
        for name in self._chosen():
            is_lost_after = self.random.random() < 0.5
            fault = Fault(is_lost_before=not is_lost_after, is_lost_after=is_lost_after)
            request = self.random.choice([*OWN_REQUESTS, *TAKEOVER_REQUESTS, "WriteTxnMarkers"])
            self.add("plan_fault", name, request, self.random.randrange(1, 4), fault)
            self.produce()

    def hold_markers(self) -> None:
        """Let brokers write no markers while a worker dies, and another one takes its tasks over."""
        self.add("hold_markers", self.random.choice([2.0, 15.0]))
        self.produce()
        self.add("pass_time", self.random.choice([0.3, 1.0]))
        for name in self._chosen():
            self._forget(name)
            self.add("kill_worker", name)
            self.start_worker()

    def _at(self, host: str, request: str, act: Event, delay_s: float) -> None:
        self.add("at_request", host, request, self.random.choice([1, 1, 2, 3, 4, 5, 6]), act, delay_s)

    def pass_time(self) -> None:
        seconds = self.random.choice([0.1, 1, 5, 10, 30]) * self.random.random()
        self.add("pass_time", round(seconds, 2))

    def _chosen(self) -> list[str]:
        return [self.random.choice(sorted(self.running))] if self.running else []

    def _forget(self, name: str) -> None:
        self.running.discard(name)
        self.suspended.discard(name)


ALWAYS: list[tuple[int, Callable[[Drawing], None]]] = [
    (6, Drawing.produce),
    (2, Drawing.change_faults),
    (2, Drawing.forget_words),
    (1, Drawing.skip_next),
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
    (1, Drawing.lose_disk),
    (2, Drawing.return_late),
    (2, Drawing.take_over_late),
    (2, Drawing.cut_off),
    (1, Drawing.lose_request),
    (1, Drawing.hold_markers),
    (1, Drawing.kill_at_request),
    (1, Drawing.hang_worker),
]
WITH_RUNS: list[tuple[int, Callable[[Drawing], None]]] = [
    (3, Drawing.start_run),
    (1, Drawing.kill_run),
    (1, Drawing.kill_run_at_request),
    (1, Drawing.cut_off_run),
    (1, Drawing.hang_run),
    (1, Drawing.hold_markers),
]


SCENES: list[tuple[int, Callable[[Drawing], None]]] = [
    (3, Drawing.return_late),
    (2, Drawing.take_over_late),
    (2, Drawing.die_within_a_commit),
    (2, Drawing.lose_trickled),
    (1, Drawing.cut_off),
    (1, Drawing.hold_markers),
    (1, Drawing.kill_run_at_request),
    (1, Drawing.hang_run),
    (2, Drawing.forget_words),
    (2, Drawing.skip_next),
]
"""Events that belong together, and lead where faults are likely."""
SCENES_FROM = 10_000
"""Histories of these seeds have scenes only."""
STATIC_FROM = 20_000
"""In histories of these seeds, workers are static members; half of them have scenes only."""
_NUMBER_OF_SCENES = 5


def drawn(seed: int) -> History:
    """Return the history of a seed."""
    random = Random(seed)
    cache_bytes, standbys = random.choice([0, 10_000_000]), random.choice([0, 0, 1])
    has_snapshots, purge_ms = random.choice([True, False]), random.choice([500, 30_000])
    has_workers, has_runs = random.choice([(True, False), (True, True), (False, True)])
    most_fetched = random.choice([1_000, 1_000, 3])
    handler = random.choice(["continue", "set-aside"])
    kinds, count = ALWAYS + WITH_WORKERS * has_workers + WITH_RUNS * has_runs, NUMBER_OF_EVENTS
    if seed >= SCENES_FROM and (seed < STATIC_FROM or seed % 2):
        kinds, count, has_workers = SCENES, _NUMBER_OF_SCENES, True
    weights, draws = zip(*kinds, strict=True)
    drawing = Drawing(random)
    for draw in random.choices(draws, weights, k=count):
        draw(drawing)
    events = tuple(drawing.events)
    return History(
        seed,
        cache_bytes,
        standbys,
        has_snapshots,
        purge_ms,
        most_fetched,
        has_workers,
        events,
        handler,
        seed >= STATIC_FROM,
    )
