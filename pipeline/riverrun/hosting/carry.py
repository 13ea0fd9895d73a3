"""The record of a release that carries state: the mark, and how far the work has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from riverrun.decoders import Line, Name, Natural, Word  # noqa: TC001 - msgspec reads the annotations
from riverrun.errors import UnderWayError


@dataclass(frozen=True, slots=True)
class Carry:
    """State that a candidate takes over from the live version.

    Args:
        is_marked: Whether the mark below is known.
        is_done: Whether the candidate stands at the mark, with all its state. The mark is forgotten then.
        at: The offset vector of the mark, as text.
        committed: Offset and metadata committed by the live version at the mark, by input.
        ends: End of each partition of its internal topics at the mark.
        settings: Settings of its changelogs that were changed meanwhile, and what they were, by topic.
        until: Ends of topics that only the candidate reads, as they were at the mark.
        fates: What becomes of each store and output, as text.
    """

    id: Word
    is_marked: bool = False
    is_done: bool = False
    at: str = ""
    committed: dict[str, tuple[Natural, str]] = field(default_factory=dict)
    ends: dict[str, Natural] = field(default_factory=dict)
    topics: dict[Name, Word] = field(default_factory=dict)
    settings: dict[Name, str] = field(default_factory=dict)
    until: dict[str, Natural] = field(default_factory=dict)
    fates: tuple[Line, ...] = ()
    functions: dict[Name, Word] = field(default_factory=dict)

    def __str__(self) -> str:
        state = f"carried, at {self.at}" if self.is_done else "being carried"
        return "\n".join([f"state is {state}", *(f"  {fate}" for fate in self.fates)])

    def require_done(self, app: str, version: str) -> None:
        """Make sure that the candidate has all that it takes over."""
        if not self.is_done:
            message = f"{app}: {version} does not have all state yet that it takes over from the live version"
            hint = f"Wait for it. If it died, complete it: riverrun release start {app} --to {version} --carry"
            raise UnderWayError(message, hint=hint)
