"""Keeps an instance's statistics, events and failures of the last hour in memory, so that a page has a past when it opens.

Figures are numbers in rings of limited size. Events are differences between two looks, a second apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from array import array
from collections import deque
from dataclasses import asdict, dataclass
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.config.secrets import redacted
from riverrun.hosting.process import SystemClock
from riverrun.service.measuring import Measuring
from riverrun.service.metrics import MeasuredInstance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping

    from riverrun.records import TaskId
    from riverrun.runtime.context import FailedRecord
    from riverrun.worker.group.protocol import AssignmentInfo
    from riverrun.worker.states import InstanceStatus

log = logging.getLogger(__name__)

KEPT_MS = 3_600_000
EVERY_MS = 2_000
MOST_SERIES = 128
"""Greatest number of series; with an hour of samples they take 2 MB."""
_MOST_EVENTS, _MOST_FAILURES = 500, 200
_LOOKS_PER_SAMPLE = 2
_MOST_NAMES = 20
_UNKNOWN = math.nan


class Watched(MeasuredInstance, Protocol):
    """An instance, as seen by its history (`StreamsInstance`)."""

    @property
    def assignment(self) -> AssignmentInfo | None:
        """The leader's last assignment, which says where all tasks are."""

    def failed(self) -> tuple[FailedRecord, ...]:
        """Return the last failures: of records that were skipped, and of stream threads that have ended."""


class Ring:
    """The last samples of several series: a time, and a number of each series that is known then.

    Args:
        most_series: Greatest number of series. Others are left out until one has no number any more.
    """

    def __init__(self, slots: int, most_series: int = MOST_SERIES) -> None:
        self._slots = slots
        self._most_series = most_series
        self._times = array("q", [0]) * slots
        self._series: dict[str, array[float]] = {}
        self._count = 0

    def add(self, at_ms: int, numbers: Mapping[str, float | None]) -> None:
        """Add a sample in place of the oldest one; None is a number that is not known."""
        at = self._count % self._slots
        if at == 0:
            self._forget()
        self._times[at] = at_ms
        for name in numbers:
            if name not in self._series and len(self._series) < self._most_series:
                self._series[name] = array("d", [_UNKNOWN]) * self._slots
        # Also series without a number now: the slot still holds the sample of an hour ago.
        for name, kept in self._series.items():
            number = numbers.get(name)
            kept[at] = _UNKNOWN if number is None else number
        self._count += 1

    def since(self, at_ms: int) -> dict[str, Any]:
        """Return the samples after a time, as JSON shows them: times, and the numbers of each series."""
        places = [at for at in self._in_order() if self._times[at] > at_ms]
        series = {name: [_shown(kept[at]) for at in places] for name, kept in list(self._series.items())}
        return {"at": [self._times[at] for at in places], "series": series}

    def _in_order(self) -> Iterator[int]:
        # Oldest first.
        first = max(self._count - self._slots, 0)
        return (number % self._slots for number in range(first, self._count))

    def _forget(self) -> None:
        # Else ended stream threads, whose numbers are part of names, would use up `most_series`.
        self._series = {name: kept for name, kept in self._series.items() if not all(map(math.isnan, kept))}


def _shown(number: float) -> float | None:
    return None if math.isnan(number) else round(number, 3)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An instance at one poll: its status, and the addresses of tasks."""

    status: InstanceStatus
    servers: Mapping[str, str]


class History:
    """The past of an instance, for as long as its HTTP interface runs."""

    def __init__(self, instance: Watched) -> None:
        self._instance = instance
        self._measuring = Measuring(instance)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._ring = Ring(KEPT_MS // EVERY_MS)
        self._events: deque[tuple[int, str]] = deque(maxlen=_MOST_EVENTS)
        self._failures: deque[tuple[int, FailedRecord]] = deque(maxlen=_MOST_FAILURES)
        self._seen: _Seen | None = None
        self._restores: dict[TaskId, tuple[float, int]] = {}
        self._looks = self._looked_ms = 0

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Look at the instance once per second within this context."""
        looking = asyncio.create_task(self._run())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    def look(self) -> None:
        """Record events and failures since the last poll and, at each second poll, the statistics."""
        with self._lock:
            now_ms = self._clock.now_ms()
            self._events.extend((now_ms, text) for text in self._happened())
            self._failures.extend((now_ms, failed) for failed in self._new_failures())
            if self._looks % _LOOKS_PER_SAMPLE == 0:
                self._ring.add(now_ms, _numbers(self._measuring.figures(time.monotonic(), {})))
            self._looks += 1
            self._looked_ms = now_ms

    def since(self, at_ms: int) -> dict[str, Any]:
        """Return all that was noted after a time (ms), as JSON shows it; `looked_at` is the time to continue from."""
        with self._lock:
            return {
                "looked_at": self._looked_ms,
                "every_ms": EVERY_MS,
                "kept_ms": KEPT_MS,
                **self._ring.since(at_ms),
                "events": [{"at": at, "text": text} for at, text in self._events if at > at_ms],
                "failures": [_failure(failed) for at, failed in self._failures if at > at_ms],
            }

    async def _run(self) -> None:
        every_s = EVERY_MS / 1000 / _LOOKS_PER_SAMPLE
        while True:
            try:
                await asyncio.to_thread(self.look)
            # The next poll may succeed, and requests are answered meanwhile.
            except Exception:
                log.exception("cannot inspect the instance")
            await asyncio.sleep(every_s)

    def _happened(self) -> Iterator[str]:
        """Return the events since the last poll; at the first one, the present state."""
        status, assignment = self._instance.status(), self._instance.assignment
        now = _Seen(status, dict(assignment.servers) if assignment is not None else {})
        before, self._seen = self._seen, now
        if before is None:
            # Restores that already run at the first poll are no events, but their ends will be.
            self._restores = {task: (time.monotonic(), missing or 0) for task, missing in status.restoring.items()}
            return iter([f"{status.state.value}; active: {_some(status.active) or 'none'}"])
        return chain(_changes(before.status, status), self._restored(status), _moves(before.servers, now.servers))

    def _new_failures(self) -> list[FailedRecord]:
        """Return the failures since the last poll."""
        last = self._failures[-1][1] if self._failures else None
        # Compared by identity: a record that fails twice in the same way is two failures.
        new = list(takewhile(lambda failed: failed is not last, reversed(self._instance.failed())))
        return new[::-1]

    def _restored(self, status: InstanceStatus) -> Iterator[str]:
        """Yield the restores that have begun or ended since the last poll."""
        now = time.monotonic()
        begun = [task for task in status.restoring if task not in self._restores]
        if begun:
            yield f"begins to restore: {_some(begun)}"
        for task, missing in status.restoring.items():
            began, most = self._restores.get(task, (now, 0))
            self._restores[task] = began, max(most, missing or 0)
        for task in sorted(self._restores.keys() - status.restoring.keys()):
            began, most = self._restores.pop(task)
            what = "has restored" if task in status.active else "restores no longer"
            yield f"{what}: {task}, {most:,} records, {now - began:.1f} s"


def _failure(failed: FailedRecord) -> dict[str, Any]:
    return asdict(failed) | {"message": redacted(failed.message), "key": redacted(failed.key)}


def _numbers(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the statistics that are kept, by the names of their series."""
    found = {name: figures[name] for name in ("rate", "lag", "latency_ms", "commit_ms", "copies_lag")}
    for number, shares in figures["stream_threads"].items():
        found |= {f"threads/{number}/{part}": share for part, share in shares.items()}
    found |= {f"sub-topologies/{number}/busy": flow["busy"] for number, flow in figures["sub_topologies"].items()}
    return found | {f"nodes/{node}/busy": share for node, share in figures["nodes"].items()}


def _changes(before: InstanceStatus, now: InstanceStatus) -> Iterator[str]:
    """Yield the changes of an instance between two polls."""
    if before.state is not now.state:
        yield f"{before.state.value} → {now.state.value}"
    if before.paused != now.paused:
        yield "paused" if now.paused else "resumed"
    if before.threads != now.threads:
        yield f"stream threads: {before.threads} → {now.threads}"
    if before.recovery_s != now.recovery_s and now.recovery_s is not None:
        yield f"all tasks run, after {now.recovery_s:.1f} s"
    changes = {
        "takes over": now.active - before.active,
        "gives up": before.active - now.active,
        "follows as standby": now.standby - before.standby,
        "follows no longer": before.standby - now.standby,
    }
    yield from (f"{what}: {_some(tasks)}" for what, tasks in changes.items() if tasks)


def _moves(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the changes of all instances between two polls."""
    moved = [task for task, server in now.items() if task in before and before[task] != server]
    old, new = set(filter(None, before.values())), set(filter(None, now.values()))
    changes = {
        "moved": moved,
        "instances that have tasks now": new - old,
        "instances without tasks now": old - new,
    }
    yield from (f"{what}: {_some(names)}" for what, names in changes.items() if names)


def _some(names: Collection[Any]) -> str:
    shown = ", ".join(map(str, sorted(names)[:_MOST_NAMES]))
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown
