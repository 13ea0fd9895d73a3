"""Reports the progress of long operations, in records, to the caller that started them.

A program that follows the progress starts the operation within `reporting_progress`. The operation calls `report_progress`, or
lets `polling_progress` poll it. Both do nothing without a listener.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from riverrun.intervals import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized
    from typing import TypeVar

    R = TypeVar("R")
    T = TypeVar("T", bound=tuple[object, Sized])

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
_ROWS = 1_000
# Short, as a poll that is under way may take more than a minute if the owner of a commit has died.
_LAST_LOOK_SECONDS = 1.0


class Progress(NamedTuple):
    """The progress of an operation in records; `everything` is None if the total is unknown."""

    doing: str
    done: int
    everything: int | None


class _Listener(NamedTuple):
    on_progress: Callable[[Progress], None]
    every_s: float


_listener: ContextVar[_Listener | None] = ContextVar("progress", default=None)


@contextmanager
def reporting_progress(on_progress: Callable[[Progress], None] | None, every_s: float = LOOK_SECONDS) -> Iterator[None]:
    """Report to `on_progress`, also from other threads, how far operations are that begin in the body, in this thread."""
    before = _listener.set(None if on_progress is None else _Listener(on_progress, every_s))
    try:
        yield
    finally:
        _listener.reset(before)


def is_followed() -> bool:
    """Return whether there is a listener, so that counting may take time."""
    return _listener.get() is not None


def report_progress(doing: str, done: int, everything: int | None = None) -> None:
    listener = _listener.get()
    if listener is not None:
        listener.on_progress(Progress(doing, done, everything))


def counted_batches(doing: str, batches: Iterable[T], everything: int | None = None) -> Iterator[T]:
    """Pass batches on, and report the number of records after each."""
    done = 0
    report_progress(doing, done, everything)
    for batch in batches:
        yield batch
        done += len(batch[1])
        report_progress(doing, done, everything)


def counted_rows(doing: str, rows: Iterable[R], everything: int | None = None) -> Iterator[R]:
    """Pass rows on, and report their number after each thousand."""
    done = 0
    for row in rows:
        yield row
        done += 1
        if done % _ROWS == 0:
            report_progress(doing, done, everything)
    report_progress(doing, done, everything)


@contextmanager
def polling_progress(doing: str, look: Callable[[], tuple[int, int | None]]) -> Iterator[None]:
    """Poll the progress of the body repeatedly, from another thread."""
    listener = _listener.get()
    if listener is None:
        yield
        return

    def follow() -> None:
        try:
            listener.on_progress(Progress(doing, *look()))
        # Any poll may fail, as when brokers do not answer or an engine is still loading. An error that matters also ends
        # the body.
        except Exception:
            log.debug("progress of %r is not known at this moment", doing, exc_info=True)

    with repeating(follow, listener.every_s, "progress", last_s=_LAST_LOOK_SECONDS):
        yield
