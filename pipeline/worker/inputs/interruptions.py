"""Interruptions of processing in a stream thread: queries, and signs of life."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Interruptions(Protocol):
    """Events that may interrupt processing."""

    def attend(self) -> None:
        """Called between two records, several times per millisecond, when stores are at rest."""
        ...

    def pause(self) -> None:
        """Called within a commit, when stores may be read by key, but not scanned."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Entered while brokers are waited for and no store is touched."""
        ...


class Undisturbed:
    """Nothing happens beside processing."""

    def attend(self) -> None:
        """Nothing."""

    def pause(self) -> None:
        """Nothing."""

    def away(self) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()
