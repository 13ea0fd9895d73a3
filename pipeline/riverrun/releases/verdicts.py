"""The verdict of a gate: whether it lets a candidate go live, and whether a person may approve it."""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import ApprovalNeededError, ReleaseError
from riverrun.hosting.release import APPROVE, GATE
from riverrun.processor.handlers import DropReason
from riverrun.records import counted
from riverrun.spark.runs import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.gated import GateVerdict
    from riverrun.hosting.release import Release
    from riverrun.records import OffsetVector, TopicPartition
    from riverrun.spark.runs import RunRecord

_DROPPED, _LOST = "records dropped", "deleted records of inputs"
# Depends on the speed of responses, and changes no result.
_HARMLESS = frozenset({DropReason.STALE_RESPONSE})
# Great Expectations makes lists of sets that it is given, whose order differs between processes.
_UNORDERED = "_set", "type_list", "regex_list", "like_pattern_list"


@dataclass(frozen=True, slots=True)
class Now:
    """The present facts that a verdict is compared with before a cut.

    Args:
        inputs: Number of offsets since the vector that the gate judged at.
        bound: The highest number that the application allows; None if there is no bound.
    """

    candidate: str
    suite: str
    digests: Mapping[str, str]
    inputs: int = 0
    bound: int | None = None


def new_id() -> str:
    return uuid.uuid4().hex[:8]


def require_valid(release: Release, now: Now) -> None:
    """Make sure that the verdict lets the candidate go live: it passed or was approved, and matches the present facts."""
    app, verdict, again = release.app, release.verdict, f"Judge it again: {release.command(GATE)}"
    if verdict is None or verdict.critical:
        raise ReleaseError(f"{app}: no gate has passed {now.candidate}", hint=again)
    for version, digest in now.digests.items():
        if verdict.digests.get(version) != digest:
            message = f"{app}: the code of {version} has changed since verdict {verdict.id}"
            hint = release.hint_of_other_code(version) if version == now.candidate else again
            raise ReleaseError(message, hint=hint)
    if verdict.suite != now.suite:
        raise ReleaseError(f"{app}: the expectations have changed since verdict {verdict.id}", hint=again)
    if now.bound is not None and now.inputs > now.bound:
        message = (
            f"{app}: verdict {verdict.id} is {counted(now.inputs, 'input')} old, max_inputs_since_gate is {now.bound}"
        )
        raise ReleaseError(message, hint=again)
    if verdict.needs_approval:
        message = f"{app}: the gate has warnings without an approval: {', '.join(verdict.warnings)}"
        raise ApprovalNeededError(message, hint=f"Look at them, then: {APPROVE.command(app, verdict.id)}")


def require_approvable(app: str, verdict: GateVerdict | None, verdict_id: str) -> GateVerdict:
    """Return the verdict of the last gate; raise if it is not the one to be approved, or blocks the release."""
    if verdict is None or verdict.id != verdict_id:
        last = "no gate has judged the candidate" if verdict is None else f"the last gate's verdict is {verdict.id}"
        message = f"{app}: verdict {verdict_id} cannot be approved: {last}"
        raise ReleaseError(message, hint=f"An approval is for one verdict only. Show it: riverrun release status {app}")
    if verdict.critical:
        message = f"{app}: verdict {verdict_id} cannot be approved: it fails critically: {', '.join(verdict.critical)}"
        raise ReleaseError(message, hint="Correct the candidate, and begin its release again.")
    return verdict


def approve(registry: ReleaseRegistry, release: Release, verdict_id: str) -> Release:
    """Record that the user approves a verdict, and when. One that is approved, or needs no approval, stays as it is."""
    verdict = require_approvable(release.app, release.verdict, verdict_id)
    if not verdict.needs_approval:
        return release
    approved = replace(verdict, approved_by=registry.by, approved_ms=registry.now_ms())
    return registry.write(replace(release, verdict=approved))


def inputs_since(vector: OffsetVector, now: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets from a vector to a position `now`: new partitions count whole, other topics not at all."""
    topics = {tp.topic for tp in vector.offsets}
    return sum(max(0, offset - vector.offsets.get(tp, 0)) for tp, offset in now.items() if tp.topic in topics)


def dropped_of(runs: Iterable[RunRecord], version: str, since_ms: int) -> dict[str, str]:
    """Return the outcome with the records that a candidate's bounded runs read and dropped; empty if there were none.

    Only runs that began at or after `since_ms` count, when the candidate began to compute its outputs.
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
    """Compare how many records both versions have dropped: return the outcome, and a warning if the candidate dropped more.

    >>> compare_dropped({"late": 601}, {"null-key": 2})[0]
    {'records dropped': 'failed: late 601; by the live version: null-key 2'}
    """
    more = [reason for reason, count in candidate.items() if count > live.get(reason, 0) and reason not in _HARMLESS]
    found = f"{_counts(candidate)}; by the live version: {_counts(live)}"
    return {_DROPPED: f"{'failed' if more else 'noted'}: {found}"}, (_DROPPED,) if more else ()


def compare_inputs(lost: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the outcome and a warning for deleted records that a candidate lacks (`Release.lost_records`); none without."""
    if not lost:
        return {}, ()
    helps = "an archive of the topics (archive.url) has them, and `release start --carry` needs fewer"
    return {_LOST: f"failed: {'; '.join(lost)}; {helps}"}, (_LOST,)


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items()) if count) or "none"


def suite_digest(expectations: Any) -> str:
    """Return a digest of the configuration of expectations: their subjects, settings and severities."""
    return hashlib.sha256(msgspec.json.encode(_plain(expectations))).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a value as JSON represents it, equal in every process."""
    configuration = getattr(value, "configuration", None)
    if configuration is not None:
        asked = {name: _setting(name, value) for name, value in sorted(configuration.kwargs.items())}
        return [configuration.type, asked, _plain(configuration.severity)]
    if is_dataclass(value) and not isinstance(value, type):
        # Fields that are left out of comparisons, such as actions and expectations of workers, cannot change a verdict.
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.compare}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    return _plain_atom(value)


def _setting(name: str, value: Any) -> Any:
    plain = _plain(value)
    return sorted(plain, key=str) if isinstance(plain, list) and name.endswith(_UNORDERED) else plain


def _plain_atom(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    # Numbers and texts of NumPy are of derived types, which the encoder refuses.
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, AbstractSet):
        return sorted((_plain(each) for each in value), key=str)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    text: Any = type(value).__str__
    # The default text shows the memory address, which differs between processes.
    return type(value).__qualname__ if text is object.__str__ else str(value)
