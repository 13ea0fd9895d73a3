"""Progress in records of what takes long: told to whoever began it, whatever calls lie between.

A program that wants to know begins the work within `telling`. Work says how far it is with `tell`, or is looked at again and
again with `looked_at`. Without a listener neither does anything.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from pipeline.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized
    from typing import TypeVar

    R = TypeVar("R")
    T = TypeVar("T", bound=tuple[object, Sized])

LOOK_SECONDS = 0.5
_ROWS = 1_000
_LAST_LOOK_SECONDS = 1.0
"""How long a look that is under way is waited for; one at a commit that has lost its owner takes longer than a minute."""


class Progress(NamedTuple):
    """How far work is.

    Args:
        doing: The work, in words.
        done: Records that are done.
        everything: Records in all; None if that is not known.
    """

    doing: str
    done: int
    everything: int | None


class _Listener(NamedTuple):
    on_progress: Callable[[Progress], None]
    every_s: float


_listener: ContextVar[_Listener | None] = ContextVar("progress", default=None)


@contextmanager
def telling(on_progress: Callable[[Progress], None] | None, every_s: float = LOOK_SECONDS) -> Iterator[None]:
    """Tell `on_progress` how far work is that begins in the body, in this thread.

    Args:
        on_progress: Called again and again, from other threads as well; None tells nobody.
        every_s: How often work is looked at that does not say so by itself.
    """
    before = _listener.set(None if on_progress is None else _Listener(on_progress, every_s))
    try:
        yield
    finally:
        _listener.reset(before)


def is_followed() -> bool:
    """Whether anybody listens: counting may cost something."""
    return _listener.get() is not None


def tell(doing: str, done: int, everything: int | None = None) -> None:
    """Say how far work is, in records."""
    listener = _listener.get()
    if listener is not None:
        listener.on_progress(Progress(doing, done, everything))


def counted_batches(doing: str, batches: Iterable[T], everything: int | None = None) -> Iterator[T]:
    """Pass on batches of records beside their partitions, and say after each how many there have been.

    Args:
        doing: What is done with them, in words.
        batches: Pairs of anything and records.
        everything: How many there are in all; more than there are if some offsets have none.
    """
    done = 0
    tell(doing, done, everything)
    for batch in batches:
        yield batch
        done += len(batch[1])
        tell(doing, done, everything)


def counted_rows(doing: str, rows: Iterable[R], everything: int | None = None) -> Iterator[R]:
    """Pass on rows, and say now and then how many there have been.

    Args:
        doing: What is done with them, in words.
        rows: The rows.
        everything: How many there are in all, if that is known.
    """
    done = 0
    for row in rows:
        yield row
        done += 1
        if done % _ROWS == 0:
            tell(doing, done, everything)
    tell(doing, done, everything)


@contextmanager
def looked_at(doing: str, look: Callable[[], tuple[int, int | None]]) -> Iterator[None]:
    """Look again and again, from another thread, how far the body is.

    Brokers that do not answer are asked again the next time: the body reports what is wrong with them.

    Args:
        doing: The work, in words.
        look: Returns the records that are done, and those in all.
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(listener.every_s):
            try:
                listener.on_progress(Progress(doing, *look()))
            except BrokerError:
                continue

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_LOOK_SECONDS)
