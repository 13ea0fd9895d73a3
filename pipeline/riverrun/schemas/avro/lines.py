"""The lines of a generated function while they are written."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_LINES = 2_000


class NotGenerated(Exception):  # noqa: N818 - no error: values are read another way
    """A schema for which no function is generated, with the reason."""


@dataclass(slots=True)
class Lines:
    """Lines, and what they name.

    Args:
        names: The things that the lines use, by name.
        written: The lines so far.
    """

    names: dict[str, Any]
    written: list[str] = field(default_factory=list)
    _count: int = 0
    _total: int = 0

    def add(self, text: str) -> None:
        """Add lines.

        Raises:
            NotGenerated: If they are too many.
        """
        added = text.splitlines()
        self._total += len(added) or 1
        if self._total > _MOST_LINES:
            message = "it would be too long"
            raise NotGenerated(message)
        self.written += added

    def new(self) -> str:
        """Return a new name for a variable."""
        self._count += 1
        return f"v{self._count}"

    def assigned(self, expression: str) -> str:
        """Add a line that assigns an expression to a new variable, and return its name."""
        name = self.new()
        self.add(f"{name} = {expression}")
        return name

    def named(self, thing: Any) -> str:
        """Return a new name of a thing."""
        if thing is None:
            return "None"
        name = f"c{len(self.names)}"
        self.names[name] = thing
        return name

    @contextmanager
    def aside(self) -> Iterator[list[str]]:
        """Collect lines in a list of their own; the caller adds them."""
        outer, self.written = self.written, []
        yield self.written
        self.written = outer

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines that are added meanwhile."""
        with self.aside() as own:
            yield
        self.written += indent("\n".join(own), " " * 4).splitlines()
