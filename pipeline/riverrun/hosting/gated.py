"""Findings of gates, and the bounded run whose outputs a gate holds back.

A run with a gate commits its state and its offsets as any other, but writes its outputs to the staging topics of its version.
The gate judges them there. Outputs that pass are published; others are held back until a person decides. Meanwhile no
host of the version may publish, as later outputs would come before those that are held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from riverrun.decoders import Line, Name, Natural, Word  # noqa: TC001 - msgspec reads the annotations
from riverrun.records import counted


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Findings of a gate. A new gate makes a new verdict, which needs its own approval.

    Args:
        at: The offset vector, as text, that both versions had processed.
        critical: Expectations that failed and block the release.
        warnings: Expectations that failed and need a person's approval.
        pages: Pages of Data Docs by subject, relative to the application's directory of Data Docs.
        docs: That directory, on the machine that judged; empty if there are no pages.
    """

    id: Word
    at: str
    suite: Word
    digests: dict[Name, Word] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    approved_by: Line = ""
    approved_ms: Natural = 0
    pages: dict[str, str] = field(default_factory=dict)
    docs: Line = ""

    @property
    def needs_approval(self) -> bool:
        """Return whether warnings await a person's approval."""
        return bool(self.warnings) and not self.critical and not self.approved_by

    def __str__(self) -> str:
        lines = [f"verdict {self.id}, at {self.at}: {self._summary}"]
        for name, outcome in self.outcomes.items():
            word, colon, found = outcome.partition(":")
            lines.append(f"  {word}: {name}{colon}{found}")
        lines += [f"  page: {self.docs}/{page}" for page in self.pages.values()]
        return "\n".join(lines)

    @property
    def _summary(self) -> str:
        if self.critical:
            return "does not pass"
        if self.needs_approval:
            return "needs an approval"
        return f"approved by {self.approved_by}" if self.approved_by else "passed"


class HeldState(Enum):
    """How far a run with a gate has come."""

    BEGUN = "begun"
    """It processes, or was interrupted: the next run continues it."""
    HELD = "held"
    """The gate has judged its outputs, and they did not pass."""
    PUBLISHING = "publishing"
    """Its outputs passed, or were approved. If the process that publishes them dies, the next command or run completes it."""
    DISCARDING = "discarding"
    """Its outputs are thrown away, and its version goes back to where it stood before; completed likewise."""


_PROGRESS = {
    HeldState.BEGUN: "it is under way, or was interrupted",
    HeldState.PUBLISHING: "they are being published",
    HeldState.DISCARDING: "they are being discarded",
}
_HINTS = {
    HeldState.BEGUN: "Wait for its end. If it died, the next run continues it: riverrun run {app}",
    HeldState.PUBLISHING: "Wait for its end. If it died, complete it: riverrun held publish {app}",
    HeldState.DISCARDING: "Wait for its end. If it died, complete it: riverrun held discard {app}",
}


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A bounded run of the live version whose outputs are not public yet.

    Args:
        id: A run that continues an interrupted one has its id.
        attempt: The process that has begun, continued or discards it: each has another one.
        is_marked: Whether the point below is known, and not returned to yet. Before that, nothing has been processed.
        committed: Offset and metadata committed by the version before the run, by input. The offset at which the run begins,
            with empty metadata, if there was none.
        ends: End of each partition of its internal topics before the run.
        settings: Settings of its changelogs that the run has changed, and what they were, by topic.
        outputs: End of each partition of its public topics before they are published.
        verdict: Findings of the gate; None if it has not judged yet.
    """

    id: Word
    version: Name
    state: HeldState = HeldState.BEGUN
    since_ms: Natural = 0
    is_marked: bool = False
    committed: dict[str, tuple[Natural, str]] = field(default_factory=dict)
    ends: dict[str, Natural] = field(default_factory=dict)
    topics: dict[Name, Word] = field(default_factory=dict)
    settings: dict[Name, str] = field(default_factory=dict)
    outputs: dict[str, Natural] = field(default_factory=dict)
    verdict: GateVerdict | None = None
    attempt: Word = ""

    @property
    def progress(self) -> str:
        """Return how far it has come, for messages."""
        if self.state is not HeldState.HELD:
            return _PROGRESS[self.state]
        if self.verdict is None:
            return "its gate could not judge them"
        if self.verdict.critical:
            return f"its gate has failed: {', '.join(self.verdict.critical)}"
        return f"its gate has warnings without an approval: {', '.join(self.verdict.warnings)}"

    def hint(self, app: str) -> str:
        if self.state is not HeldState.HELD:
            return _HINTS[self.state].format(app=app)
        discard = f"take the run back: riverrun held discard {app}"
        if self.verdict is not None and not self.verdict.critical:
            return f"Look at them, then publish: riverrun held publish {app} --approve {self.verdict.id}. Or {discard}"
        return f"Correct the expectations and judge again: riverrun held judge {app}. Or {discard}"

    def __str__(self) -> str:
        told = f"the outputs of run {self.id} of {self.version} are held back: {self.progress}"
        return told if self.verdict is None else f"{told}\n{self.verdict}"


def held_between(before: HeldRun | None, after: HeldRun | None) -> str:
    """Return what a change did to a run with a gate; empty if there is none before or after it."""
    if after is not None:
        return f"run {after.id} is {after.state.value}"
    if before is None:
        return ""
    ends = {HeldState.PUBLISHING: "published", HeldState.DISCARDING: "discarded"}
    return f"run {before.id} is {ends.get(before.state, 'over')}"


PUBLISHED, DISCARDED = "published", "discarded"


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run with a gate whose outputs are public; `verdict` is None if it is no longer known."""

    id: str
    records: int
    verdict: GateVerdict | None = None

    def __str__(self) -> str:
        told = f"run {self.id}: {counted(self.records, 'record')} published"
        return told if self.verdict is None else f"{told}\n{self.verdict}"
