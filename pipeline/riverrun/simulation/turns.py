"""Runs threads one at a time under one seed and one clock, so that a history of a cluster can be repeated exactly.

An actor is a thread of Python that has the turn or waits. It hands the turn over wherever it waits; the seed chooses the next
of those that need not wait. When all of them wait, the clock jumps to the next time at which one stops waiting.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
import zlib
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

_BEGIN_NS: Final = 1_767_225_600_000_000_000
"""2026-01-01 UTC: when the clock starts."""
_TURN_NS: Final = 10_000
# A read takes time as well: a loop that only reads the clock would never end.
_READ_NS: Final = 1_000
# An actor that need not wait keeps the turn in this share of cases: each handover costs a switch of threads.
_KEEPS: Final = 0.85
_KEPT_TURNS: Final = 50
_ENDLESS: Final = float("inf")
# Real time that an actor gets to hand the turn over when the wait of `main` is interrupted.
_GIVE_BACK_SECONDS: Final = 5.0


def _always() -> bool:
    return True


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error with those that led to it."""
    found: list[BaseException] = []
    left = [error]
    while left:
        each = left.pop()
        if each is not None and each not in found:
            found.append(each)
            left += [each.__cause__, each.__context__]
    return found


class Killed(BaseException):
    """Raised in the actors of a host that is killed. No error: nothing may handle it."""


class DeadlockError(Exception):
    """All actors wait, none of them for a time."""


class StuckTurnError(Exception):
    """An actor keeps the turn: it waits for something that the scheduler does not know, or never ends."""


@dataclass(eq=False)
class Host:
    """A process, as the cluster sees it: actors that are killed, suspended and resumed together.

    Args:
        lag_s: Each of its turns begins up to so many seconds late.
        parent: Its end is also the end of this host.
        at_end: Called when it ends, whether it was killed or not.
        hangs_until_ns: It hangs before this time.
    """

    name: str
    parent: Host | None = None
    lag_s: float = 0.0
    is_suspended: bool = False
    is_dead: bool = False
    error: BaseException | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list)
    hangs_until_ns: int = 0

    def is_within(self, other: Host) -> bool:
        """Return whether it is the other host, or was started by it."""
        return self is other or (self.parent is not None and self.parent.is_within(other))


@dataclass(eq=False)
class Actor:
    """A thread that takes turns."""

    name: str
    host: Host
    function: Callable[[], object] | None = None
    ready: Callable[[], bool] = _always
    ends_ns: float = _ENDLESS
    from_ns: int = 0
    is_killed: bool = False
    has_ended: bool = False
    thread_id: int = 0
    killer: Actor | None = None
    baton: threading.Lock = field(default_factory=threading.Lock)

    def next_ns(self) -> float:
        """Return when it can take a turn, if nothing changes until then; infinity for never."""
        if self.host.is_suspended:
            return _ENDLESS
        return self.from_ns if self.ready() else max(self.ends_ns, self.from_ns)


class Turns:
    """Lets one actor at a time take a turn. The thread that enters it is the actor `main`.

    Args:
        seed: Chooses each next actor, and all that `random` is asked for.
        stuck_s: Real seconds after which an actor that keeps the turn is reported.
    """

    def __init__(self, seed: int, *, stuck_s: float = 60.0) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - a simulation
        self.now_ns = _BEGIN_NS
        self.count = 0
        self.trace = 0
        """A checksum of all turns: equal histories have equal ones."""
        self.last: deque[tuple[float, str]] = deque(maxlen=_KEPT_TURNS)
        """The last turns: seconds since the start, and the actor."""
        self.errors: list[tuple[str, BaseException]] = []
        """Errors that have ended actors, with their names."""
        self._stuck_s = stuck_s
        self._main = Actor("main", Host("main"))
        self._running = self._main
        self._actors: list[Actor] = []
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        self._deadlock = ""
        self._is_choosing = False
        self._is_stuck = False
        self._hook = sys.unraisablehook
        self._collected = False

    def __enter__(self) -> Self:
        self._adopt(self._main)
        self._actors.append(self._main)
        # A collection may call what waits, at any time.
        self._collected = gc.isenabled()
        gc.disable()
        gc.freeze()
        self._hook, sys.unraisablehook = sys.unraisablehook, self._note_unraisable
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.unraisablehook = self._hook
        gc.unfreeze()
        if self._collected:
            gc.enable()
        if self._is_stuck:
            # The others wait for an actor that never hands the turn over.
            return
        try:
            for actor in list(self._actors):
                self._unwind(actor)
        except StuckTurnError:
            if error is None:
                raise
            return
        for thread in self._threads:
            thread.join(self._stuck_s)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        del self._own.actor
        if error is None:
            self._let_go()
        if left and error is None:
            message = f"Seed {self.seed}: these actors have not ended: {', '.join(left)}"
            raise StuckTurnError(message)

    def _let_go(self) -> None:
        """Forget what actors had: it refers to this, and would live for as long as anything that looks at the clock."""
        self._main.ready = _always
        self._main.host.at_end.clear()
        for _, failed in self.errors:
            # Frames hold all that their functions could see.
            for each in _chain(failed):
                each.__traceback__ = None

    def _note_unraisable(self, raised: sys.UnraisableHookArgs) -> None:
        # Objects of killed hosts may want to close what they have.
        if raised.exc_type is not Killed:
            self._hook(raised)

    # Actors and hosts

    @property
    def actor(self) -> Actor | None:
        """Return the actor of the calling thread; None for a thread that takes no turns."""
        return getattr(self._own, "actor", None)

    @property
    def host(self) -> Host:
        """Return the host of the calling thread."""
        return (self.actor or self._main).host

    @property
    def is_stuck(self) -> bool:
        """Return whether an actor has kept the turn, so that `main` can wait for nothing more."""
        return self._is_stuck

    @property
    def is_killed(self) -> bool:
        """Return whether the calling actor has been killed, and is coming to its end."""
        actor = self.actor
        return actor is not None and actor.is_killed

    @property
    def awake(self) -> int:
        """Return the number of actors that have not ended, and are not suspended."""
        return sum(not actor.host.is_suspended for actor in self._actors)

    @property
    def hosts(self) -> list[Host]:
        """Return the hosts that have actors, other than `main`'s."""
        return list(dict.fromkeys(actor.host for actor in self._actors if actor.host is not self._main.host))

    def start_host(self, name: str, function: Callable[[], object], *, parent: Host | None = None) -> Host:
        """Start a host with an actor that calls a function. The host ends when this actor ends."""
        host = Host(name, parent)

        def run() -> None:
            try:
                function()
            except Killed:
                # Without its trace, whose frames hold what the host had.
                host.error = Killed()
                raise
            except BaseException as error:
                host.error = error
                raise
            finally:
                self.end(host)

        self.start(run, name, host)
        return host

    def start(self, function: Callable[[], object], name: str, host: Host | None = None) -> Actor:
        """Start an actor, of the calling thread's host unless another is named."""
        self._refuse_killed()
        host = host or self.host
        actor = Actor(name if name == host.name else f"{host.name}/{name}", host, function)
        actor.baton.acquire()
        thread = threading.Thread(target=self._run, args=(actor,), name=actor.name, daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()
        self._actors.append(actor)
        return actor

    def kill(self, host: Host) -> None:
        """Kill a host and those it has started: each actor is at its end before this returns."""
        host.error = host.error or Killed()
        current = self.actor
        if current is None or not current.host.is_within(host):
            self.end(host)
            return
        # First: actors that end now end their hosts as well, and must not hand the turn back to this one for that.
        current.is_killed = True
        self.end(host)
        raise Killed

    def end(self, host: Host) -> None:
        """End a host with the hosts it has started, but not the calling actor."""
        within = [actor for actor in self._actors if actor.host.is_within(host)]
        ending = list(dict.fromkeys([host, *(actor.host for actor in within)]))
        news = [each for each in ending if not each.is_dead]
        for each in news:
            each.is_dead = True
        for actor in within:
            self._unwind(actor)
        for each in news:
            for call in each.at_end:
                call()
        if news:
            self._forget()

    def _forget(self) -> None:
        """Delete the objects of hosts that have ended, which hold files. They may wait for nothing meanwhile."""
        current = self.actor
        if current is not None:
            was_killed, current.is_killed = current.is_killed, True
            gc.collect()
            current.is_killed = was_killed

    def suspend(self, host: Host, *, is_suspended: bool = True) -> None:
        """Suspend a host and those it has started, as SIGSTOP does, or resume them."""
        for each in [host, *self.hosts]:
            if each.is_within(host):
                each.is_suspended = is_suspended

    def hang(self, host: Host, seconds: float) -> None:
        """Let a host and those it has started take no turn for so long, from their next wait on."""
        until_ns = self.now_ns + round(seconds * 1e9)
        for each in [host, *self.hosts]:
            if each.is_within(host):
                each.hangs_until_ns = max(each.hangs_until_ns, until_ns)
        for actor in self._actors:
            if actor.host.is_within(host):
                actor.from_ns = max(actor.from_ns, until_ns)

    def is_away(self, host: Host) -> bool:
        """Return whether a host is suspended, or hangs."""
        return host.is_suspended or self.now_ns < host.hangs_until_ns

    # Waiting

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Hand the turn over until the condition is true, or the time is up. Returns whether it is true."""
        actor = self.actor
        if actor is None:
            return _poll(ready, timeout_s)
        if self._is_choosing or actor is not self._running:
            message = f"{actor.name} waits, and it is the turn of {self._running.name}"
            raise RuntimeError(message)
        self._refuse_killed()
        is_ready = ready()
        if (is_ready or timeout_s == 0) and self.random.random() < _KEEPS:
            # A loop that only polls takes time as well.
            self.now_ns += _READ_NS
            return is_ready
        actor.ready = ready
        actor.ends_ns = _ENDLESS if timeout_s is None else self.now_ns + max(0, round(timeout_s * 1e9))
        self._hand_over(actor)
        return ready()

    def sleep(self, seconds: float) -> None:
        """Let the others take turns for so long."""
        self.wait_until(lambda: False, seconds)

    def read_ns(self) -> int:
        """Return the time, ns since the epoch. Each read takes a moment."""
        self.now_ns += _READ_NS
        return self.now_ns

    # Turns

    def _run(self, actor: Actor) -> None:
        self._adopt(actor)
        actor.baton.acquire()
        try:
            self._refuse_killed()
            if actor.function:
                actor.function()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - as any thread's error, it ends the thread alone
            self.errors.append((actor.name, error))
        finally:
            # While it still has the turn: objects that it holds alone may wait when they are deleted.
            actor.function, actor.ready = None, _always
            # It has killed its host itself, whose files its frames have held until now.
            if actor.is_killed and actor.killer is None:
                self._forget()
            actor.has_ended = True
            self._actors.remove(actor)
            successor = actor.killer or self._next()
            self._running = successor
            successor.baton.release()

    def _adopt(self, actor: Actor) -> None:
        self._own.actor = actor
        actor.thread_id = threading.get_ident()
        if actor is self._main:
            actor.baton.acquire()

    def _refuse_killed(self) -> None:
        if self.is_killed:
            raise Killed

    def _unwind(self, actor: Actor) -> None:
        """Let an actor come to its end now, in which it can neither wait nor ask."""
        current = self.actor
        if current is None or actor in {current, self._main} or actor.is_killed or actor.has_ended:
            return
        # It keeps the turn, in code that never ends.
        if actor is self._running:
            return
        actor.is_killed, actor.killer = True, current
        self._give(current, actor)

    def _hand_over(self, actor: Actor) -> None:
        successor = self._next()
        if successor is not actor:
            self._give(actor, successor)
        self._refuse_killed()
        if actor is self._main and self._deadlock:
            report, self._deadlock = self._deadlock, ""
            raise DeadlockError(report)

    def _give(self, actor: Actor, successor: Actor) -> None:
        self._running = successor
        successor.baton.release()
        if actor is not self._main:
            actor.baton.acquire()
            return
        try:
            self._await_turn(actor)
        except StuckTurnError:
            self._is_stuck = True
            raise
        except BaseException:
            # Ctrl-C, or the handler of a time limit.
            self._is_stuck = True
            self._take_turn_back(actor)
            raise

    def _await_turn(self, actor: Actor) -> None:
        count = self.count
        while not actor.baton.acquire(timeout=self._stuck_s):
            if count == self.count:
                message = f"Seed {self.seed}: {self._running.name} keeps the turn\n{self.stacks()}"
                raise StuckTurnError(message)
            count = self.count

    def _take_turn_back(self, actor: Actor) -> None:
        actor.ready = _always
        ends = time.monotonic() + min(self._stuck_s, _GIVE_BACK_SECONDS)
        while self._running is not actor and time.monotonic() < ends:
            time.sleep(0.001)
        if self._running is actor:
            # Not at once: the other releases it a moment later, or the interrupt came after it was taken.
            actor.baton.acquire(timeout=_GIVE_BACK_SECONDS)
            self._is_stuck = False

    def _next(self) -> Actor:
        self.now_ns += _TURN_NS
        self._is_choosing = True
        try:
            times = [actor.next_ns() for actor in self._actors]
        finally:
            self._is_choosing = False
        first = min(times)
        if first == _ENDLESS:
            self._deadlock = f"Seed {self.seed}: all actors wait for each other\n{self.stacks()}"
            return self._main
        self.now_ns = max(self.now_ns, int(first))
        able = [actor for actor, at in zip(self._actors, times, strict=True) if at <= self.now_ns]
        chosen = able[self.random.randrange(len(able))] if len(able) > 1 else able[0]
        if chosen.host.lag_s:
            chosen.from_ns = self.now_ns + self.random.randrange(1 + round(chosen.host.lag_s * 1e9))
        self._note(chosen)
        return chosen

    def _note(self, actor: Actor) -> None:
        self.count += 1
        self.last.append(((self.now_ns - _BEGIN_NS) / 1e9, actor.name))
        self.trace = zlib.crc32(f"{self.now_ns}{actor.name}".encode(), self.trace)

    def stacks(self) -> str:
        """Return the place of each actor in the code, without lines of the scheduler."""
        frames = sys._current_frames()  # noqa: SLF001 - as debuggers do
        return "\n".join(f"{actor.name}:\n{_place(frames.get(actor.thread_id))}" for actor in self._actors)


def _place(frame: FrameType | None) -> str:
    hidden = {__file__, threading.__file__}
    lines = [each for each in traceback.extract_stack(frame) if each.filename not in hidden] if frame else []
    return "".join(traceback.format_list(lines))


def _poll(ready: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait in a thread that takes no turns."""
    ends = _ENDLESS if timeout_s is None else time.monotonic() + timeout_s
    while not ready() and time.monotonic() < ends:
        time.sleep(0.001)
    return ready()
