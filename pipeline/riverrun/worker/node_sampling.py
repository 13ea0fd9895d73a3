"""Samples at which node of the topology a stream thread is, to show where its time goes.

Operators are fused, so marks around each of them would cost as much as the operators do. Instead, the instance signals its
processes every few milliseconds. Python calls the handler of a signal between two instructions of the main thread, which is the
stream thread. The handler looks at the frame there: each line of a generated function belongs to a node.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from riverrun.intervals import repeating
from riverrun.runtime.node_frames import node_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from riverrun.worker.spawning import ChildProcess

# SIGURG does nothing to a process without a handler, and processes must bear it at any time.
SIGNAL = signal.SIGURG

# A process, not a thread: a thread would mostly get the interpreter when the stream thread waits, and blame that node.
_CLOCK = """\
import os, sys, time
process, number, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
while os.getppid() == process:
    os.kill(process, number)
    time.sleep(seconds)
"""
# After a sample, signals are ignored for so many times as long as it took: samples take a twentieth of the time.
_APART = 20


class NodeTimes:
    """Adds up the time that the main thread of this process spends at each node.

    Args:
        node_of: Returns the node whose operator or queue an object is (`Task.node_of`).
    """

    def __init__(self, node_of: Callable[[object], str]) -> None:
        self._node_of = node_of
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started_at = self._sampled_at = time.perf_counter()
        self._not_before = 0.0

    def start(self) -> None:
        """Take a sample at each signal from now on. Called in the main thread."""
        self._started_at = self._sampled_at = time.perf_counter()
        signal.signal(SIGNAL, self._sample)
        # System calls of libraries are restarted: a sample must not make them fail.
        signal.siginterrupt(SIGNAL, False)  # noqa: FBT003 - takes no keywords

    def seconds(self) -> Mapping[str, float]:
        """Return the time spent at each node, s, without nodes that no sample has met."""
        return {node: spent for node, spent in list(self._seconds.items()) if node}

    def shares(self) -> Mapping[str, float]:
        """Return the share of the time from the start to the last sample that was spent at each node, the largest one first."""
        passed = self._sampled_at - self._started_at
        largest = sorted(self.seconds().items(), key=lambda spent: -spent[1])
        return {node: spent / passed for node, spent in largest}

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        if _is_debugged():
            signal.signal(SIGNAL, signal.SIG_IGN)
            return
        now = time.perf_counter()
        # Python calls the handler for the next signal also within this one. That one's time would count twice.
        if now < self._not_before:
            return
        self._not_before = math.inf
        try:
            # Such as a RecursionError: the user's function must not fail because of a sample.
            with suppress(Exception):
                # All time since the last sample counts here, so merged signals lose none: the process was in one call.
                self._seconds[node_at(frame, self._node_of)] += now - self._sampled_at
        finally:
            self._sampled_at, ended = now, time.perf_counter()
            # A thousand frames of a recursion may take longer than the interval: nothing else would run.
            self._not_before = ended + _APART * (ended - now)


def _is_debugged() -> bool:
    # Steps of pdb, or of another debugger of its kind, would lead into the handler.
    bdb = sys.modules.get("bdb")
    return bdb is not None and isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb)


@contextmanager
def sampled(times: NodeTimes, interval_ms: int) -> Iterator[None]:
    """Take samples of this process within this context, which its main thread enters. They end when a debugger stops it."""
    if not interval_ms:
        yield
        return
    before = signal.getsignal(SIGNAL)
    times.start()
    try:
        with clocked(interval_ms):
            yield
    finally:
        signal.signal(SIGNAL, before)


@contextmanager
def clocked(interval_ms: int) -> Iterator[None]:
    """Signal this process at an interval within this context, from a process that ends with it."""
    arguments = [str(os.getpid()), str(int(SIGNAL)), str(interval_ms / 1000)]
    command = [sys.executable, "-I", "-S", "-c", _CLOCK, *arguments]
    nowhere = subprocess.DEVNULL
    # In a separate session, so that Ctrl-C does not end it before the worker.
    with subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True) as clock:
        try:
            yield
        finally:
            clock.kill()


@contextmanager
def signalled(interval_ms: int, processes: Callable[[], Iterable[ChildProcess]]) -> Iterator[None]:
    """Signal stream threads at an interval within this context, from a thread."""

    def signal_all() -> None:
        for process in processes():
            process.signal(SIGNAL)

    with repeating(signal_all, interval_ms / 1000, "node-samples") if interval_ms else nullcontext():
        yield
