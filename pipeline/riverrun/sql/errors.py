"""Mistakes in statements, with their places and the nearest name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable


class SqlError(TopologyError):
    """A statement that cannot become a topology. Its author must act.

    Args:
        message: What is wrong.
        start: Offset of the place in the text; None if it is not known.
        hint: What to do about it.
    """

    def __init__(self, message: str, start: int | None = None, *, hint: str | None = None) -> None:
        """Keep the place until `place` adds it to the message."""
        super().__init__(message, hint=hint)
        self.start = start

    def place(self, text: str, file: str) -> None:
        """Add file, line and column to the message, unless it has them."""
        if self.line is None and self.start is not None:
            before = text[: self.start]
            self.locate(f"{file}:{before.count(chr(10)) + 1}:{self.start - before.rfind(chr(10))}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar name, or with all names if none is similar.

    >>> nearest("AMUONT", ["AMOUNT", "ID"])
    'Did you mean AMOUNT?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.upper(), names, 1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(names)}" if names else None
