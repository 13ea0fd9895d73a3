"""Interruptions of processing in a stream thread: queries, and signs of life."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Interruptions(Protocol):
    """Hooks that interrupt processing."""

    def attend(self) -> None:
        """Called between two records, several times per millisecond, when stores are at rest."""
        ...

    def pause(self) -> None:
        """Called within a commit, when stores may be read by key, but not scanned."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Return a context to enter while the thread waits for brokers and touches no store."""
        ...


class Undisturbed:
    """Interruptions that do nothing."""

    def attend(self) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def away(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()
