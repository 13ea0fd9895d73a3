"""The history of an application's releases: one record per revision, next to the record of the release's current state.

Records are kept under `<app>/<revision>`; names of applications have no slash. No record is written twice, so compaction
keeps all of them. There is one per step that a person or a schedule takes, each a few hundred bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Name, Natural, Time, UnreadableError, Word, foreign_decoder
from riverrun.hosting.publication import require_about, unreadable
from riverrun.records import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping


_ROLES = {"aborted": "was given up", "rolled-back": "was rolled back"}
"""The part of a candidate after the last step of a release that did not make it live."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write of a release: the change, its author and its time.

    Args:
        app: The application.
        revision: Orders the changes. Times cannot, since machines' clocks differ.
        by: The author: `user@host`, or a run of a DAG.
        at_ms: Time by the clock of the author's machine, ms since the epoch.
        riverrun: The version of Riverrun that made the change.
        before: The step of the release before the change.
        step: The step after the change.
        live: The version that is live after the change.
        candidate: The version that is released.
        epoch: The number of switches so far.
        digests: Digests of the versions' code.
        cut: The offset vector, as text.
        verdict: The id of the gate's verdict; empty if there is none.
        corrections: Number of records that the last switch published.
        repaired: The last repair of the public tables.
        changed: Fields of the release that the change modified.
    """

    app: Name
    revision: Natural
    by: Line
    at_ms: Time
    riverrun: Line
    before: Word
    step: Word
    live: Name
    candidate: Name | None = None
    epoch: Natural = 0
    digests: dict[Name, Word] = field(default_factory=dict)
    cut: str | None = None
    verdict: Word = ""
    corrections: Natural = 0
    repaired: str = ""
    changed: tuple[Word, ...] = ()

    def __str__(self) -> str:
        """Describe it on one line."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        step = self.step if self.before == self.step else f"{self.before} -> {self.step}"
        release = f"{self.live} is live" + (f", {self.candidate} {self._role}" if self._role else "")
        held = f", {' and '.join(self.changed)} changed" if self.before == self.step and self.changed else ""
        cut = f", at {self.cut}" if "cut" in self.changed and self.cut else ""
        verdict = f", verdict {self.verdict}" if "verdict" in self.changed and self.verdict else ""
        repaired = f", repaired {self.repaired}" if "repaired" in self.changed and self.repaired else ""
        return f"{self.revision}  {at}  {self.by}  {step}: {release}{cut}{verdict}{repaired}{held}"

    @property
    def _role(self) -> str:
        """The part of the candidate after the change; empty if there is none, or if it is live."""
        if self.candidate in {None, self.live}:
            return ""
        return _ROLES.get(self.step, "is the candidate")


def encoded(one: Change) -> dict[str, bytes | None]:
    """Return a change under the name it is kept under."""
    return {f"{one.app}/{one.revision}": msgspec.json.encode(asdict(one))}


def history(app: str, notes: Mapping[str, bytes]) -> list[Change]:
    """Return the changes of an application, first to last.

    Args:
        app: The application.
        notes: All that the control topic holds.

    Raises:
        ReleaseError: If one of them cannot be read.
    """
    return [_decoded(name, notes[name]) for name in names_of(app, notes)]


def names_of(app: str, notes: Mapping[str, bytes]) -> list[str]:
    """Return the names of an application's changes, first to last."""
    prefix = f"{app}/"
    numbers = (whole_number(name.removeprefix(prefix)) for name in notes if name.startswith(prefix))
    return [f"{prefix}{number}" for number in sorted(number for number in numbers if number is not None)]


def last_revision(app: str, notes: Mapping[str, bytes]) -> int:
    """Return the revision of the last known change; 0 if there is none."""
    names = names_of(app, notes)
    return int(names[-1].rpartition("/")[2]) if names else 0


_change = foreign_decoder(Change)


def _decoded(name: str, value: bytes) -> Change:
    try:
        found = _change(value)
        require_about(name, f"{found.app}/{found.revision}")
    except UnreadableError as error:
        raise unreadable(name, error) from error
    return found
