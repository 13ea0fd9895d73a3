"""The verdict of a gate: its findings, the code, offsets and expectations they are about, and its approval.

The history of an application's releases: one record per revision, next to the record of the release's current state.

Records are kept under `<app>/<revision>`; names of applications have no slash. No record is written twice, so compaction
keeps all of them. There is one per step that a person or a schedule takes, each a few hundred bytes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import (
    Line,
    Name,
    Natural,
    Time,
    UnreadableError,
    Word,
    foreign_decoder,
)
from riverrun.errors import ApprovalNeededError, ReleaseError
from riverrun.hosting.publication import require_about, unreadable
from riverrun.processor.handlers import DropReason
from riverrun.records import counted, whole_number
from riverrun.spark.runs import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.records import OffsetVector, TopicPartition
    from riverrun.spark.runs import RunRecord

_DROPPED = "records dropped"
_HARMLESS = frozenset({DropReason.STALE_RESPONSE})
"""Reasons that depend on the speed of answers, and change no result."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Findings of a gate. A new gate makes a new verdict, which needs an approval of its own.

    Args:
        id: Identifies it.
        at: The offset vector, as text, that both versions had processed.
        suite: Digest of the expectations' configuration.
        digests: Digests of the code of both versions, by version.
        outcomes: Expectation to outcome, in words.
        critical: Expectations that failed and block the release.
        warnings: Expectations that failed and need a person's approval.
        approved_by: The person who approved it; empty without an approval.
        approved_ms: Time of the approval, ms since the epoch.
        pages: Pages of Data Docs by subject, relative to the application's directory of Data Docs.
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

    @property
    def needs_approval(self) -> bool:
        """Whether warnings await a person's approval."""
        return bool(self.warnings) and not self.critical and not self.approved_by

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"verdict {self.id}, at {self.at}: {self._summary}"]
        for name, outcome in self.outcomes.items():
            word, colon, found = outcome.partition(":")
            lines.append(f"  {word}: {name}{colon}{found}")
        return "\n".join(lines)

    @property
    def _summary(self) -> str:
        if self.critical:
            return "does not pass"
        if self.needs_approval:
            return "needs an approval"
        return f"approved by {self.approved_by}" if self.approved_by else "passed"


@dataclass(frozen=True, slots=True)
class Now:
    """The present facts that a verdict is compared with before a cut.

    Args:
        candidate: The version that is to go live.
        suite: Digest of the expectations' configuration.
        digests: Digests of the code of both versions, by version.
        inputs: Number of offsets since the vector that the gate judged at.
        bound: The highest number that the application allows; None if there is no bound.
    """

    candidate: str
    suite: str
    digests: Mapping[str, str]
    inputs: int = 0
    bound: int | None = None


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex[:8]


def require_valid(app: str, verdict: GateVerdict | None, now: Now) -> None:
    """Make sure that a verdict lets a candidate go live: it passed or was approved, and matches the present facts.

    Args:
        app: The application.
        verdict: The verdict of the last gate; None if there is none.
        now: The present facts.

    Raises:
        ApprovalNeededError: If its warnings have no approval.
        ReleaseError: If there is none, it blocks, or the code, the expectations or the data have changed since.
    """
    again = f"Judge it again: riverrun release gate {app}"
    if verdict is None or verdict.critical:
        message = f"{app}: no gate has passed {now.candidate}"
        raise ReleaseError(message, hint=again)
    for version, digest in now.digests.items():
        if verdict.digests.get(version) != digest:
            message = f"{app}: the code of {version} has changed since verdict {verdict.id}"
            begins = f"riverrun release start {app} --to {version} begins the release again."
            raise ReleaseError(message, hint=begins if version == now.candidate else again)
    if verdict.suite != now.suite:
        message = f"{app}: the expectations have changed since verdict {verdict.id}"
        raise ReleaseError(message, hint=again)
    if now.bound is not None and now.inputs > now.bound:
        message = (
            f"{app}: verdict {verdict.id} is {counted(now.inputs, 'input')} old, max_inputs_since_gate is {now.bound}"
        )
        raise ReleaseError(message, hint=again)
    if verdict.needs_approval:
        message = f"{app}: the gate has warnings without an approval: {', '.join(verdict.warnings)}"
        raise ApprovalNeededError(
            message, hint=f"Look at them, then: riverrun release approve {app} --verdict {verdict.id}"
        )


def require_approvable(app: str, verdict: GateVerdict | None, verdict_id: str) -> GateVerdict:
    """Return the verdict of the last gate, if it is the one to be approved.

    Raises:
        ReleaseError: If it is another, or blocks the release.
    """
    if verdict is None or verdict.id != verdict_id:
        last = "no gate has judged the candidate" if verdict is None else f"the last gate's verdict is {verdict.id}"
        message = f"{app}: verdict {verdict_id} cannot be approved: {last}"
        raise ReleaseError(message, hint=f"An approval is for one verdict only. Show it: riverrun release status {app}")
    if verdict.critical:
        message = f"{app}: verdict {verdict_id} cannot be approved: it fails critically: {', '.join(verdict.critical)}"
        raise ReleaseError(message, hint="Correct the candidate, and begin its release again.")
    return verdict


def inputs_since(vector: OffsetVector, now: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between a vector and a version's position; new partitions count whole.

    Args:
        vector: The offsets that were judged.
        now: The present position; topics that are not in the vector do not count.
    """
    topics = {tp.topic for tp in vector.offsets}
    return sum(max(0, offset - vector.offsets.get(tp, 0)) for tp, offset in now.items() if tp.topic in topics)


def dropped_of(runs: Iterable[RunRecord], version: str, since_ms: int) -> dict[str, str]:
    """Return the counts of records that a candidate's bounded runs read and dropped, for a gate; empty if there were none.

    Args:
        runs: Runs of the application.
        version: The candidate.
        since_ms: When it began to compute its outputs, ms since the epoch.
    """
    own = [run for run in runs if run.version == version and run.state == DONE and run.started_ms >= since_ms]
    if not own:
        return {}
    dropped: Counter[str] = Counter()
    for run in own:
        dropped.update(run.dropped)
    return {
        "records of bounded runs": f"noted: {sum(run.records_in for run in own):,} read; dropped: {_counts(dropped)}"
    }


def compare_dropped(candidate: Mapping[str, int], live: Mapping[str, int]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Compare how many records a candidate and the live version have dropped, whichever hosts have processed them.

    Args:
        candidate: Counts of the candidate, by reason.
        live: Those of the live version.

    Returns:
        The outcome for a verdict, and its name as a warning if the candidate has dropped more for any reason.

    >>> compare_dropped({"late": 601}, {"null-key": 2})[0]
    {'records dropped': 'failed: late 601; by the live version: null-key 2'}
    """
    more = [reason for reason, count in candidate.items() if count > live.get(reason, 0) and reason not in _HARMLESS]
    found = f"{_counts(candidate)}; by the live version: {_counts(live)}"
    return {_DROPPED: f"{'failed' if more else 'noted'}: {found}"}, (_DROPPED,) if more else ()


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items()) if count) or "none"


def suite_digest(expectations: Any) -> str:
    """Return a digest of the configuration of expectations: their subjects, settings and severities.

    Args:
        expectations: Great Expectations' own, in any nesting, as an application's `quality` returns them.
    """
    return hashlib.sha256(msgspec.json.encode(_plain(expectations))).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a value as JSON represents it, equal in every process."""
    configuration = getattr(value, "configuration", None)
    if configuration is not None:
        return [configuration.type, _plain(configuration.kwargs), _plain(configuration.severity)]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.compare}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    return _plain_atom(value)


def _plain_atom(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, AbstractSet):
        return sorted((_plain(each) for each in value), key=str)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    text: Any = type(value).__str__
    return type(value).__qualname__ if text is object.__str__ else str(value)  # else shows its memory address


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
