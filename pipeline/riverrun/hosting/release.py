"""Releases: their steps, the actions that lead from step to step, and their records in the control topic.

The record of an application is kept under its name. It says which version is live, how far the release of another has come,
and at which barrier versions pause. Its changes are kept under `<app>/<revision>`; names of applications have no slash. No
change is written twice, so compaction keeps all of them. There is one per step that a person or a schedule takes, each a few
hundred bytes.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - evaluated
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from riverrun.decoders import Line, Name, Natural, Time, UnreadableError, Word, foreign_decoder
from riverrun.errors import NotLiveError, ReleaseError, UnderWayError, VersionConflictError
from riverrun.hosting.carry import Carry  # noqa: TC001 - msgspec reads the annotations
from riverrun.hosting.gated import GateVerdict, HeldRun, HeldState, held_between
from riverrun.records import whole_number
from riverrun.runtime.barrier import Barrier  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROL_TOPIC = "riverrun-releases"


class ReleaseStep(Enum):
    """The step that a release has reached."""

    NONE = "none"
    PLANNED = "planned"
    REPROCESSED = "reprocessed"
    GATED = "gated"
    CUTTING = "cutting"
    LIVE = "live"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"
    ABORTED = "aborted"


# Before `cutting`, a release may be planned again or aborted; afterwards it can only be rolled back. A switch returns to the
# step before it if the live version turns out to be running before anything is published.
TRANSITIONS: Mapping[ReleaseStep, frozenset[ReleaseStep]] = {
    ReleaseStep.NONE: frozenset({ReleaseStep.PLANNED}),
    ReleaseStep.PLANNED: frozenset({ReleaseStep.REPROCESSED, ReleaseStep.ABORTED}),
    ReleaseStep.REPROCESSED: frozenset(
        {ReleaseStep.PLANNED, ReleaseStep.REPROCESSED, ReleaseStep.GATED, ReleaseStep.ABORTED}
    ),
    ReleaseStep.GATED: frozenset(
        {ReleaseStep.PLANNED, ReleaseStep.REPROCESSED, ReleaseStep.GATED, ReleaseStep.CUTTING, ReleaseStep.ABORTED}
    ),
    ReleaseStep.CUTTING: frozenset({ReleaseStep.GATED, ReleaseStep.LIVE}),
    ReleaseStep.LIVE: frozenset({ReleaseStep.PLANNED, ReleaseStep.ROLLING_BACK}),
    ReleaseStep.ROLLING_BACK: frozenset({ReleaseStep.LIVE, ReleaseStep.ROLLED_BACK}),
    ReleaseStep.ROLLED_BACK: frozenset({ReleaseStep.PLANNED}),
    ReleaseStep.ABORTED: frozenset({ReleaseStep.PLANNED, ReleaseStep.ABORTED}),
}

SETTLED = frozenset({ReleaseStep.NONE, ReleaseStep.LIVE, ReleaseStep.ROLLED_BACK, ReleaseStep.ABORTED})
"""Steps at which no release is under way."""
BEGUN = ReleaseStep.PLANNED, ReleaseStep.REPROCESSED, ReleaseStep.GATED
"""Steps of a release before its cut."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action on a release: the method of `Releaser` and the command that have its name.

    Its steps `taken_at` include the one that it leads to: a caller that crashed may repeat it. `status` names it at `next_at`.
    `option` of the command has the argument of the method. `would` describes it in dry runs, `says` describes its result.
    """

    name: str
    taken_at: tuple[ReleaseStep, ...] = ()
    next_at: tuple[ReleaseStep, ...] = ()
    option: str = ""
    would: str = ""
    says: str = ""
    computes: bool = False
    carries: bool = False

    def take(self, releaser: Any, argument: str = "", *, carry: bool = False) -> Any:
        arguments = [argument] if self.option else []
        return getattr(releaser, self.name)(*arguments, **({"carry": carry} if self.carries else {}))

    def command(self, app: str, argument: str = "") -> str:
        return f"riverrun release {self.name} {app}" + (f" --{self.option} {argument}" if argument else "")


_JUDGED = ReleaseStep.REPROCESSED, ReleaseStep.GATED
PLAN = Action("plan", option="to", carries=True)
START = Action(
    "start",
    next_at=(ReleaseStep.NONE, ReleaseStep.ROLLED_BACK, ReleaseStep.ABORTED),
    option="to",
    would="begin the release of {argument}; the last release can no longer be rolled back",
    says="{0.candidate} will replace {0.live}",
    carries=True,
)
REPROCESS = Action(
    "reprocess",
    taken_at=BEGUN,
    next_at=(ReleaseStep.PLANNED,),
    would="compute {0.candidate} up to where {0.live} stands, into staging topics",
    says="{0.range} is processed",
    computes=True,
)
GATE = Action(
    "gate",
    taken_at=_JUDGED,
    next_at=(ReleaseStep.REPROCESSED,),
    would="judge {0.candidate} where it and {0.live} have processed the same offsets; nothing public changes",
    says="{0.verdict}",
    computes=True,
)
DIFF = Action("diff", _JUDGED)
APPROVE = Action("approve", _JUDGED, option="verdict", would="approve the warnings of verdict {argument}")
CUT = Action(
    "cut",
    taken_at=(ReleaseStep.GATED, ReleaseStep.CUTTING, ReleaseStep.LIVE),
    next_at=(ReleaseStep.GATED, ReleaseStep.CUTTING),
    would="make {0.candidate} live in the place of {0.live}, correct the public tables by what differs,"
    " and publish the logs that only {0.candidate} writes",
    says="{0.live} is live, {0.corrections} corrections were published",
    computes=True,
)
ROLLBACK = Action(
    "rollback",
    taken_at=(ReleaseStep.LIVE, ReleaseStep.ROLLING_BACK, ReleaseStep.ROLLED_BACK),
    next_at=(ReleaseStep.LIVE, ReleaseStep.ROLLING_BACK),
    would="make {0.previous} live again in the place of {0.live}, correct the public tables by what differs,"
    " and publish the logs that only {0.previous} writes",
    computes=True,
)
_DELETED = "delete what {} has computed: staging and internal topics, offsets, state"
RETIRE = Action("retire", option="version", would=_DELETED.format("{argument}") + "; there is no way back to it")
ABORT = Action("abort", would="give up the release of {0.candidate}, and " + _DELETED.format("it"))
RESTORE = Action("restore", option="live", would="note that {argument} is live")

ACTIONS: Mapping[str, Action] = {
    each.name: each for each in (PLAN, START, REPROCESS, GATE, APPROVE, CUT, ROLLBACK, RETIRE, ABORT, DIFF, RESTORE)
}
SWITCHING: Mapping[ReleaseStep, Action] = {ReleaseStep.CUTTING: CUT, ReleaseStep.ROLLING_BACK: ROLLBACK}
"""Steps in which no version may publish, with the action that completes each."""


DELETED = "deleted"
"""In place of the digest of a version whose results are being deleted: some of them may be gone."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release as the control topic knows it.

    Args:
        candidate: The version that is to go live, or that went live last.
        previous: The version that was live before, to roll back to.
        cut: The offset vector, as text. Outputs below it are the old version's, and the rest the new version's.
        verdict: Findings of the last gate; None if the present state was not judged.
        corrections: Number of records that the last switch published.
        switch: Identifies the last switch, even if another process completes it.
        pause_ms: Time without publishing during the last switch of running versions, in all its attempts, ms.
        corrections_ms: The part of it that corrections took, ms.
        digests: Digests of the code that computed each version's outputs, where known; `DELETED` while they are deleted.
        begins: Where each version began to compute, by version and input, where earlier records were deleted by then.
        thinned: Compacted topics that each version aggregates as streams, if records may have been removed when it began.
        published: How far the records of staging topics of logs are published: offset by the topic's id and the partition.
        repaired: The last repair of the public tables: which rows, and by which verdict; empty if there was none.
        computing_since_ms: When the candidate began to compute its outputs, ms since the epoch; 0 if it has none.
        failed_pause_ms: How long versions paused in attempts to switch that came to nothing, since the last gate, ms.
        held: The bounded run of the live version whose outputs a gate holds back.
        carry: State that the candidate takes over from the live version; None if it computes everything.
        joint: The applications that are released together, with their candidates, in the order of the flow; empty if alone.
        inputs: By version, the topics that it reads in place of public ones while it is not live (`elsewhere`).
        revision: Counts the writes; compare-and-set compares it.
        operation: Identifies one write, to recognise it after an unknown outcome.
        changed_ms: Time of the write by the clock of the writing machine, ms since the epoch.
    """

    app: Name
    live: Name
    step: ReleaseStep = ReleaseStep.NONE
    candidate: Name | None = None
    previous: Name | None = None
    cut: str | None = None
    verdict: GateVerdict | None = None
    corrections: Natural = 0
    switch: Line = ""
    pause_ms: Natural = 0
    corrections_ms: Natural = 0
    digests: dict[Name, Word] = field(default_factory=dict)
    begins: dict[Name, dict[Line, Natural]] = field(default_factory=dict)
    thinned: dict[Name, tuple[Line, ...]] = field(default_factory=dict)
    published: dict[Word, Natural] = field(default_factory=dict)
    repaired: str = ""
    computing_since_ms: Natural = 0
    epoch: Natural = 0
    failed_pause_ms: Natural = 0
    barrier: Barrier | None = None
    held: HeldRun | None = None
    carry: Carry | None = None
    joint: dict[Name, Name] = field(default_factory=dict)
    inputs: dict[Name, dict[Line, Line]] = field(default_factory=dict)
    revision: Natural = 0
    operation: Word = ""
    changed_by: Line = ""
    changed_ms: Natural = 0

    def __str__(self) -> str:
        lines = [f"{self.app}: {self.live} is live; release: {self.step.value} {self.candidate or ''}".rstrip()]
        if self.step not in SETTLED:
            lines += self.lost_records
        lines += [
            f"results of {version} are being deleted, or that was interrupted"
            for version, digest in self.digests.items()
            if digest == DELETED
        ]
        if self.verdict is not None:
            lines.append(str(self.verdict))
        if self.step in {ReleaseStep.LIVE, ReleaseStep.ROLLED_BACK}:
            lines.append(f"{self.corrections} corrections were published, at {self.cut}")
            if self.pause_ms:
                lines.append(
                    f"publication paused for {self.pause_ms} ms, {self.corrections_ms} ms of it for corrections"
                )
        if self.repaired:
            lines.append(f"repaired: {self.repaired}")
        if self.held is not None:
            lines.append(str(self.held))
        if self.carry is not None and self.candidate is not None and self.step not in SETTLED:
            lines.append(str(self.carry))
        if self.joint:
            lines.append(f"released together: {named_versions(self.joint)}")
        if self.barrier is not None:
            since, by = _text_of(self.barrier.since_ms), self.barrier.by
            lines.append(f"publication has been paused since {since}, for {by}; last active: {self.changed_by}")
        return "\n".join(lines)

    @property
    def name(self) -> str:
        return self.app

    @property
    def lost_records(self) -> tuple[str, ...]:
        """Describe the deleted records that the candidate lacks and the live version may have processed."""
        known, candidate = self.begins.get(self.live, {}), self.candidate or ""
        deleted = [
            f"{candidate} began at offset {offset} of {tp}: what follows from the deleted records before it is missing"
            for tp, offset in self.begins.get(candidate, {}).items()
            if offset > known.get(tp, 0)
        ]
        removed = [
            f"{candidate} aggregates {topic}, which is compacted: what follows from records that brokers may have removed is"
            " missing"
            for topic in self.thinned.get(candidate, ())
        ]
        return (*deleted, *removed)

    @property
    def progress(self) -> str:
        """The step that it has reached, for messages."""
        return "no release is planned" if self.step is ReleaseStep.NONE else f"the release is {self.step.value}"

    def elsewhere(self, version: str) -> Mapping[str, str] | None:
        """Return the topics that a version reads in place of public ones; None if it reads public ones alone."""
        return None if version == self.live else self.inputs.get(version) or None

    def require_inputs(self, version: str, elsewhere: Mapping[str, str] | None) -> None:
        """Make sure that a version was loaded with the topics that it reads by now: a joint switch changes them."""
        # Members of environments have other names, and no release.
        if (self.elsewhere(version) or {}) != (elsewhere or {}):
            message = f"{self.app}: {version} reads other topics since a joint release has taken its next step"
            raise UnderWayError(message, hint="Start it again: it then reads these.")

    def command(self, action: Action, argument: str = "") -> str:
        """Return the command of an action, with all applications that take it together."""
        return joint_command(action.name, self.joint) if self.joint else action.command(self.app, argument)

    def hint_of_other_code(self, version: str) -> str:
        """Return the hint for a version whose code has changed since the release was planned."""
        if self.joint and self.step in BEGUN:
            return f"{self.command(ABORT)} gives the joint release up; then start it again."
        again = START.command(self.app, version)
        if version == self.candidate and self.step is not ReleaseStep.ROLLED_BACK:
            return f"{again} begins it again."
        return f"Restore its code of that time, or release {version} again: {again} computes it from scratch."

    def require_alone(self, action: Action) -> None:
        """Make sure that a step concerns no other application: one of a joint release is taken with all of them."""
        if self.joint:
            message = f"{self.app}: {self.candidate} is released together with other applications"
            raise ReleaseError(message, hint=f"Take the step with all of them: {self.command(action)}")

    def require_startable(self, candidate: str, joint: Mapping[str, str]) -> None:
        """Make sure that no other release is before its cut: of another version, or with other applications."""
        if self.step in BEGUN and (self.candidate, self.joint) != (candidate, joint):
            message = f"{self.app}: {self.candidate} is being released; {self.progress}"
            raise ReleaseError(message, hint=f"Give it up first: {self.command(ABORT)}")

    def to(self, step: ReleaseStep, **changes: Any) -> Release:
        """Return the release at its next step. The barrier ends, except in the middle of a switch."""
        if step not in TRANSITIONS[self.step]:
            allowed = ", ".join(sorted(s.value for s in TRANSITIONS[self.step]))
            message = f"{self.app}: {self.progress}; {step.value} cannot be the next step"
            raise ReleaseError(message, hint=f"Possible next steps: {allowed}.")
        barrier = self.barrier if step in SWITCHING else None
        return replace(self, step=step, **{"barrier": barrier, **changes})

    def require_no_switch(self, live: str | None = None) -> None:
        """Make sure that a version may process. The other version would not get what it commits in the middle of a switch."""
        if self.step in SWITCHING:
            message = f"{self.app}: the release is {self.step.value}; until that is completed, nothing else may process"
            hint = f"Wait for it. If it died: {self.command(SWITCHING[self.step])}"
            raise UnderWayError(message, hint=hint)
        # A version that a user has named may process whichever is live; one that was looked up must still be live.
        if live is not None and self.live != live:
            raise UnderWayError(f"{self.app}: {self.live} has just replaced {live}", hint="Try again.")

    def require_not_live(self, version: str) -> None:
        """Make sure that a version still writes to staging topics: nobody would publish what it adds once it is live."""
        if self.step in SWITCHING and version in {self.candidate, self.previous}:
            self.require_no_switch()
        if version == self.live:
            raise UnderWayError(f"{self.app}: {version} has just become live", hint="Try again: it publishes now.")

    def require_no_barrier(self, version: str) -> None:
        """Make sure that a version does not pause at a barrier."""
        if self.barrier is not None and version in self.barrier.limits:
            message = (
                f"{self.app} {version} pauses at barrier {self.barrier.id}; until that is over, no run may process"
            )
            raise UnderWayError(
                message,
                hint="Try again in a minute: a release compares, switches or repairs. If that has died, repeat its command.",
            )

    def require_carried(self, version: str) -> None:
        """Make sure that a version has all state that it takes over from the live version."""
        if self.carry is not None and version == self.candidate and self.step is ReleaseStep.PLANNED:
            self.carry.require_done(self.app, version)

    def require_results(self, version: str) -> None:
        """Make sure that no results of a version may be missing because deleting them has begun, and has not ended."""
        if self.digests.get(version) == DELETED:
            message = f"{self.app}: results of {version} are being deleted, so some may be gone"
            is_begun = self.step not in SETTLED and version == self.candidate
            deletes = self.command(ABORT) if is_begun else RETIRE.command(self.app, version)
            again = self.command(START, version) if is_begun else START.command(self.app, version)
            hint = (
                f"If nobody deletes them any more: {deletes} deletes the rest,"
                f" and {again} computes all of them from scratch."
            )
            raise ReleaseError(message, hint=hint)

    def require_nothing_carried(self) -> None:
        """Make sure that no state is being copied from the live version, whose changelogs a run with a gate changes."""
        if self.candidate is not None:
            self.require_carried(self.candidate)

    def require_nothing_held(self) -> None:
        """Make sure that no outputs of a run of the live version are held back: later ones would be published before them."""
        if self.held is not None:
            message = f"{self.app}: the outputs of run {self.held.id} are held back: {self.held.progress}"
            raise UnderWayError(message, hint=self.held.hint(self.app))

    def require_attempt(self, attempt: str) -> None:
        """Make sure that an attempt of a run with a gate, or the run of a switch, is still the one that processes."""
        if self.step in SWITCHING and attempt == self.switch:
            return
        # Others may have continued, published or discarded the run while its process hung.
        if self.held is None or (self.held.state, self.held.attempt) != (HeldState.BEGUN, attempt):
            raise self.other_attempt()

    def other_attempt(self) -> VersionConflictError:
        """Make the error that another process has taken a run with a gate over."""
        message = f"{self.app}: another process has continued, published, discarded or begun a run meanwhile"
        return VersionConflictError(message, hint=f"Look at it: riverrun held show {self.app}")

    def not_live(self, version: str) -> NotLiveError:
        """Make the error that a version may not publish."""
        message = f"{self.app} {version} may not publish: {self.live} is live"
        return NotLiveError(message, hint="Started again, it processes without publishing, into staging topics.")


def named_versions(joint: Mapping[str, str]) -> str:
    """Return applications with their versions, as commands take them."""
    return " ".join(f"{app}={version}" for app, version in joint.items())


def joint_command(action: str, joint: Mapping[str, str]) -> str:
    """Return the command that takes a step of a joint release."""
    return f"riverrun release joint {action} {named_versions(joint)}"


_BOOKKEEPING = frozenset({"app", "revision", "operation", "changed_by", "changed_ms", "failed_pause_ms"})
_ROLES = {"aborted": "was given up", "rolled-back": "was rolled back"}
"""The part of a candidate after the last step of a release that did not make it live."""


@dataclass(frozen=True, slots=True)
class ReleaseChange:
    """One write of a release: the change, its author and its time. Other fields are those of the release after it.

    Args:
        revision: Orders the changes. Times cannot, since machines' clocks differ.
        by: The author: `user@host`, or a run of a DAG.
        at_ms: Time by the clock of the author's machine, ms since the epoch.
        verdict: The id of the gate's verdict; empty if there is none.
        held: The bounded run that a gate held back before or after the change, and what became of it; empty if there is none.
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
    held: Line = ""
    changed: tuple[Word, ...] = ()

    @classmethod
    def between(cls, before: Release | None, after: Release) -> ReleaseChange:
        from importlib.metadata import version  # noqa: PLC0415 - loads far more than this module, which every worker needs

        names = [each.name for each in fields(after) if each.name not in _BOOKKEEPING]
        return cls(
            app=after.app,
            revision=after.revision,
            by=after.changed_by,
            at_ms=after.changed_ms,
            riverrun=version("riverrun"),
            before="none" if before is None else before.step.value,
            step=after.step.value,
            live=after.live,
            candidate=after.candidate,
            epoch=after.epoch,
            digests=after.digests,
            cut=after.cut,
            verdict=after.verdict.id if after.verdict else "",
            corrections=after.corrections,
            repaired=after.repaired,
            held=held_between(None if before is None else before.held, after.held),
            changed=tuple(name for name in names if before is None or getattr(before, name) != getattr(after, name)),
        )

    def __str__(self) -> str:
        at = _text_of(self.at_ms)
        step = self.step if self.before == self.step else f"{self.before} -> {self.step}"
        release = f"{self.live} is live" + (f", {self.candidate} {self._role}" if self._role else "")
        changed = f", {' and '.join(self.changed)} changed" if self.before == self.step and self.changed else ""
        cut = f", at {self.cut}" if "cut" in self.changed and self.cut else ""
        verdict = f", verdict {self.verdict}" if "verdict" in self.changed and self.verdict else ""
        repaired = f", repaired {self.repaired}" if "repaired" in self.changed and self.repaired else ""
        held = f", {self.held}" if "held" in self.changed and self.held else ""
        return f"{self.revision}  {at}  {self.by}  {step}: {release}{cut}{verdict}{repaired}{held}{changed}"

    @property
    def name(self) -> str:
        return f"{self.app}/{self.revision}"

    @property
    def _role(self) -> str:
        """The part of the candidate after the change; empty if there is none, or if it is live."""
        if self.candidate in {None, self.live}:
            return ""
        return _ROLES.get(self.step, "is the candidate")


def _text_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def staging_name(application_id: str, topic: str) -> str:
    """Return the staging topic to which a version that is not live writes, instead of a public topic."""
    return f"{application_id}-staging-{topic}"


_Record = TypeVar("_Record", Release, ReleaseChange)
_release, _change = foreign_decoder(Release), foreign_decoder(ReleaseChange)


def encoded(*records: Release | ReleaseChange) -> dict[str, bytes | None]:
    """Return records by the name under which each is kept."""
    return {record.name: msgspec.json.encode(record) for record in records}


def release_in(notes: Mapping[str, bytes], app: str) -> Release | None:
    """Return the record of an application; None if there is none."""
    value = notes.get(app)
    return None if value is None else _decoded(_release, app, value)


def history_in(notes: Mapping[str, bytes], app: str) -> list[ReleaseChange]:
    """Return the changes of an application, first to last. Arguments and errors are those of `release_in`."""
    return [_decoded(_change, name, notes[name]) for name in changes_in(notes, app)]


def changes_in(notes: Mapping[str, bytes], app: str) -> list[str]:
    """Return the names of an application's changes, first to last."""
    prefix = f"{app}/"
    numbers = (whole_number(name.removeprefix(prefix)) for name in notes if name.startswith(prefix))
    return [f"{prefix}{number}" for number in sorted(number for number in numbers if number is not None)]


def last_revision_in(notes: Mapping[str, bytes], app: str) -> int:
    """Return the revision of the last known change; 0 if there is none."""
    names = changes_in(notes, app)
    return int(names[-1].rpartition("/")[2]) if names else 0


def _decoded(decode: Callable[[bytes], _Record], name: str, value: bytes) -> _Record:
    try:
        found = decode(value)
        if found.name != name:
            message = f"it is about {found.name}"
            raise UnreadableError(message)  # noqa: TRY301 - reported as the others
    except UnreadableError as error:
        message = f"The control topic {CONTROL_TOPIC} holds a record of {name} that cannot be read: {error}"
        hint = "Was it written by a newer version of Riverrun? If not, check who may write to that topic."
        raise ReleaseError(message, hint=hint) from error
    return found
