"""A control topic in memory, for tests of what is noted in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class MemoryNotes:
    """Keeps what is written, all or nothing.

    Args:
        outcome_unknown: Whether writers do not hear that something was written.
    """

    def __init__(self, *, outcome_unknown: bool = False) -> None:
        self.values: dict[str, bytes] = {}
        self.before_write: Callable[[], None] = lambda: None  # what another writer does meanwhile
        self.outcome_unknown = outcome_unknown

    def read(self) -> dict[str, bytes]:
        return dict(self.values)

    def write(self, _lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:
        meanwhile, self.before_write = self.before_write, lambda: None
        meanwhile()
        check()
        self.values |= {name: value for name, value in values.items() if value is not None}
        for name in [name for name, value in values.items() if value is None]:
            self.values.pop(name, None)
        if self.outcome_unknown:
            message = "no answer"
            raise UnknownOutcomeError(message)
