"""Stand-ins for `threading`, `time`, `queue`, `concurrent.futures` and sources of randomness, whose waits are turns."""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import FunctionType, ModuleType

    from riverrun.simulation.turns import Turns

T = TypeVar("T")
_BEGIN_MONOTONIC_S = 1_000_000


class Time(types.ModuleType):
    """`time`, by the clock of the turns; threads that take none get the machine's."""

    def __init__(self, turns: Turns) -> None:
        super().__init__("time")
        self._turns = turns
        self._begin_ns = turns.now_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return self._turns.read_ns() if self._turns.actor else time.time_ns()  # noqa: TID251 - the machine's

    def time(self) -> float:
        return self.time_ns() / 1e9

    def monotonic_ns(self) -> int:
        if not self._turns.actor:
            return time.monotonic_ns()
        return _BEGIN_MONOTONIC_S * 1_000_000_000 + self._turns.read_ns() - self._begin_ns

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    perf_counter = monotonic

    def clock_gettime(self, _clock: int) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self._turns.sleep(seconds)


class Lock:
    """`threading.Lock`, and `threading.RLock` if it counts."""

    def __init__(self, turns: Turns, *, counts: bool = False) -> None:
        self._turns = turns
        self._counts = counts
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - Python's
        mine = threading.get_ident()
        if self._counts and self._count and self._owner == mine:
            self._count += 1
            return True
        wanted_s = None if timeout < 0 else timeout
        if not self._turns.wait_until(lambda: self._count == 0, wanted_s if blocking else 0):
            return False
        self._owner, self._count = mine, 1
        return True

    def release(self) -> None:
        if not self._count or (self._counts and self._owner != threading.get_ident()):
            # An actor that is killed while it waits for a condition cannot take the lock back.
            if self._turns.is_killed:
                return
            message = "release of a lock that is not held"
            raise RuntimeError(message)
        self._count -= 1

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()

    def give_up(self) -> int:
        """Release it however often it is held. Returns that number, for `take_back`."""
        count, self._count = self._count, 0
        return count

    def take_back(self, count: int) -> None:
        """Acquire it as often as it was held."""
        self.acquire()
        self._count = count


class Condition:
    """`threading.Condition`."""

    def __init__(self, turns: Turns, lock: Lock | None = None) -> None:
        self._turns = turns
        self._lock = lock or Lock(turns, counts=True)
        self._waiting: deque[object] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        ticket = object()
        self._waiting.append(ticket)
        count = self._lock.give_up()
        try:
            return self._turns.wait_until(lambda: ticket not in self._waiting, timeout)
        finally:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._lock.take_back(count)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        ends_ns = None if timeout is None else self._turns.now_ns + timeout * 1e9
        while not (result := predicate()):
            left_s = None if ends_ns is None else (ends_ns - self._turns.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft()

    def notify_all(self) -> None:
        self._waiting.clear()


class RequestLock:
    """`riverrun.simulation.waiting.Waiting`, in turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lock = Lock(turns, counts=True)

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def wait_until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        count = self._lock.give_up()
        self._turns.wait_until(lambda: not self._lock.locked() and predicate(), timeout_s)
        self._lock.take_back(count)
        return predicate()

    def changed(self) -> None:
        """Do nothing: conditions are looked at before each turn."""

    def now_s(self) -> float:
        return self._turns.read_ns() / 1e9


class Event:
    """`threading.Event`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._turns.wait_until(self.is_set, timeout)


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, turns: Turns, value: int = 1) -> None:
        self._turns = turns
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - Python's
        if not self._turns.wait_until(lambda: self._value > 0, timeout if blocking else 0):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class Thread:
    """`threading.Thread`: an actor of the host that starts it."""

    def __init__(
        self,
        turns: Turns,
        group: None = None,  # noqa: ARG002 - Python's
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._turns = turns
        self._call = functools.partial(target or self.run, *args, **(kwargs or {}))
        self.name = str(name or getattr(target, "__name__", type(self).__name__))
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self._ended = False

    def run(self) -> None:
        """Do what a subclass wants to be done."""

    def start(self) -> None:
        self.ident = self._turns.start(self._whole, self.name).thread_id

    def _whole(self) -> None:
        try:
            self._call()
        finally:
            self._ended = True

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended

    def join(self, timeout: float | None = None) -> None:
        self._turns.wait_until(lambda: self._ended, timeout)


class Timer(Thread):
    """`threading.Timer`."""

    def __init__(self, turns: Turns, interval: float, function: Callable[[], object]) -> None:
        super().__init__(turns, name="timer")
        self._interval = interval
        self._function = function
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def run(self) -> None:
        if not self._turns.wait_until(lambda: self._cancelled, self._interval):
            self._function()


class SimpleQueue(Generic[T]):
    """`queue.SimpleQueue` and `queue.Queue`, without a limit."""

    def __init__(self, turns: Turns, _maxsize: int = 0) -> None:
        self._turns = turns
        self._items: deque[T] = deque()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002, FBT001, FBT002 - Python's
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> T:  # noqa: FBT001, FBT002 - Python's
        if not self._turns.wait_until(lambda: bool(self._items), timeout if block else 0):
            raise queue.Empty
        return self._items.popleft()

    def put_nowait(self, item: T) -> None:
        self.put(item)

    def get_nowait(self) -> T:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Future(concurrent.futures.Future[T]):
    """`concurrent.futures.Future`, which waits in turns."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._condition: Any = Condition(turns)
        self._state: str

    def done(self) -> bool:
        # Without the lock: conditions of waits call this.
        return self._state not in {"PENDING", "RUNNING"}


class ThreadPoolExecutor(concurrent.futures.Executor):
    """`concurrent.futures.ThreadPoolExecutor`."""

    def __init__(
        self,
        turns: Turns,
        max_workers: int | None = None,
        thread_name_prefix: str = "pool",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._turns = turns
        self._most = max_workers or 4
        self._name = thread_name_prefix or "pool"
        self._initialize = functools.partial(initializer, *initargs) if initializer else None
        self._threads: list[Thread] = []
        self._idle = 0
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._is_shut:
            message = "cannot schedule new futures after shutdown"
            raise RuntimeError(message)
        future = Future[T](self._turns)
        self._calls.append((future, functools.partial(fn, *args, **kwargs)))
        if len(self._calls) > self._idle and len(self._threads) < self._most:
            thread = Thread(self._turns, target=self._work, name=f"{self._name}_{len(self._threads)}")
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Python's
        self._is_shut = True
        while cancel_futures and self._calls:
            self._calls.popleft()[0].cancel()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        if self._initialize:
            self._initialize()
        while True:
            self._idle += 1
            self._turns.wait_until(lambda: bool(self._calls) or self._is_shut)
            self._idle -= 1
            if not self._calls:
                return
            future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                _settle(future, call)


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        future.set_exception(error)
    else:
        future.set_result(result)


def _wait(
    turns: Turns, fs: Iterable[Future[T]], timeout: float | None = None, return_when: str = "ALL_COMPLETED"
) -> Any:
    futures = set(fs)

    def is_enough() -> bool:
        done = [each for each in futures if each.done()]
        if return_when == concurrent.futures.FIRST_COMPLETED and done:
            return True
        return len(done) == len(futures)

    turns.wait_until(is_enough, timeout)
    done = {each for each in futures if each.done()}
    return done, futures - done


class Namespace(types.ModuleType):
    """A module in which some names have other values."""

    def __init__(self, module: ModuleType, names: Mapping[str, object]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _by_name(turns: Turns) -> Iterator[tuple[ModuleType, dict[str, object]]]:
    """Yield the modules that have stand-ins, with the names that these replace."""
    make = functools.partial
    yield (
        threading,
        {
            "Lock": make(Lock, turns),
            "RLock": make(Lock, turns, counts=True),
            "Condition": make(Condition, turns),
            "Event": make(Event, turns),
            "Semaphore": make(Semaphore, turns),
            "BoundedSemaphore": make(Semaphore, turns),
            "Thread": make(Thread, turns),
            "Timer": make(Timer, turns),
        },
    )
    queues = make(SimpleQueue, turns)
    yield queue, {"SimpleQueue": queues, "Queue": queues}
    pool = make(ThreadPoolExecutor, turns)
    yield (
        concurrent.futures,
        {"Future": make(Future, turns), "ThreadPoolExecutor": pool, "wait": make(_wait, turns)},
    )
    drawn = turns.random
    yield random, {name: getattr(drawn, name) for name in ("random", "uniform", "randrange", "choice", "randint")}
    yield secrets, {"token_hex": lambda size=32: drawn.randbytes(size).hex(), "token_bytes": drawn.randbytes}
    yield uuid, {"uuid4": lambda: uuid.UUID(int=drawn.getrandbits(128), version=4)}


@contextmanager
def simulated(turns: Turns, package: str = "riverrun", also: Iterable[tuple[object, object]] = ()) -> Iterator[None]:
    """Replace, in the modules of a package, what waits and what is random, while the body runs.

    `also` has further pairs of an object and its stand-in.
    """
    clock = Time(turns)
    pairs: list[tuple[object, object]] = [(time, clock), *also]
    pairs += [(getattr(time, name), getattr(clock, name)) for name in ("sleep", "time", "time_ns", "monotonic")]
    pairs += [(getattr(time, name), getattr(clock, name)) for name in ("monotonic_ns", "perf_counter")]
    for module, names in _by_name(turns):
        pairs.append((module, Namespace(module, names)))
        pairs += [(getattr(module, name), stand_in) for name, stand_in in names.items()]
    with _replaced(package, pairs):
        yield


@contextmanager
def _replaced(package: str, pairs: Iterable[tuple[object, object]]) -> Iterator[None]:
    stand_ins = {id(real): stand_in for real, stand_in in pairs}
    # A module that is loaded meanwhile may import a stand-in from another one.
    reals = {id(stand_in): real for real, stand_in in pairs}
    undo: list[Callable[[], None]] = []

    def replace_in(module: ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if id(value) in stand_ins or id(value) in reals:
                undo.append(functools.partial(setattr, module, name, reals.get(id(value), value)))
                setattr(module, name, stand_ins.get(id(value), value))
        for function in _functions(module):
            undo.extend(_replace_defaults(function, stand_ins))
        for cached in _cached(module):
            # Python 3.11 holds it while the value is computed, for all objects of a class; later versions have none.
            undo.append(functools.partial(setattr, cached, "lock", cached.lock))
            cached.lock = nullcontext()

    try:
        for module in _modules(package):
            replace_in(module)
        with _each_import(package, replace_in):
            yield
    finally:
        for call in reversed(undo):
            call()


@contextmanager
def _each_import(package: str, act: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call a function with each module of a package that is loaded while the body runs."""
    finder = _Finder(package, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds modules of a package as Python does, and has them replaced once they are loaded."""

    def __init__(self, package: str, act: Callable[[ModuleType], None]) -> None:
        self._package = package
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finders have; None for modules of others."""
        if not _is_within(self._package, name):
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader stays with the module, which may be loaded again when the cluster is closed.
            del loader.exec_module
            load(module)
            self._act(module)

        loader.exec_module = exec_module


def _modules(package: str) -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if _is_within(package, name)]


def _is_within(package: str, name: str) -> bool:
    own = __name__.rpartition(".")[0]
    return (name == package or name.startswith(f"{package}.")) and not name.startswith(own)


def _own(module: ModuleType) -> Iterator[Any]:
    """Yield what a module defines, with the attributes of its classes."""
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from vars(value).values()
        else:
            yield value


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for each in _own(module):
        function = getattr(each, "__func__", each)
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
            yield function


def _cached(module: ModuleType) -> Iterator[Any]:
    for each in _own(module):
        if isinstance(each, functools.cached_property) and hasattr(each, "lock"):
            yield each


def _replace_defaults(function: FunctionType, stand_ins: Mapping[int, object]) -> list[Callable[[], None]]:
    """Replace default arguments, and the factories of dataclasses' fields, which are in closures."""
    undo: list[Callable[[], None]] = []
    before, named = function.__defaults__, function.__kwdefaults__
    if any(id(value) in stand_ins for value in before or ()):
        undo.append(functools.partial(setattr, function, "__defaults__", before))
        function.__defaults__ = tuple(stand_ins.get(id(value), value) for value in before or ())
    if any(id(value) in stand_ins for value in (named or {}).values()):
        undo.append(functools.partial(setattr, function, "__kwdefaults__", named))
        function.__kwdefaults__ = {name: stand_ins.get(id(value), value) for name, value in (named or {}).items()}
    for cell in function.__closure__ or ():
        value = _content(cell)
        if id(value) in stand_ins:
            undo.append(functools.partial(setattr, cell, "cell_contents", value))
            cell.cell_contents = stand_ins[id(value)]
    return undo


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # Not filled yet.
        return None
