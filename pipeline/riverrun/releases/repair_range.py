"""The part of the public tables that can be repaired now, and the input that it is computed from.

Rows are computed by the live version's code or by that of another version, but only where the result stays: the live version
continues with its own state. So another version's code only computes rows that the live version no longer changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.errors import RangeError, ReleaseError
from riverrun.hosting.continuing import require_new
from riverrun.kafka.ranges import offsets_at_time
from riverrun.records import OffsetRange, TopicPartition
from riverrun.releases.scope import require_repairable
from riverrun.releases.topology import require_same_keys, require_same_kinds
from riverrun.runtime.times import OffsetMetadata
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.releases.scope import Reach, Scope


def reach_of(live: ConnectedApplication, code: ConnectedApplication, scope: Scope) -> Reach:
    """Return the distance in time between a scope's rows and the records that they are computed from."""
    reach = require_repairable(code.application, scope)
    if code.version == live.version:
        return reach
    require_same_kinds(live.application, code.application)
    require_same_keys(live.application, code.application)
    unread = {*code.topology.source_topics} - {*live.topology.source_topics}
    if unread:
        message = f"{code.id} reads {', '.join(sorted(unread))}, which {live.id} does not: up to where is unknown"
        raise ReleaseError(message, hint=f"Release {code.version} instead: riverrun release start.")
    reach |= require_repairable(live.application, replace(scope, topics=frozenset(reach.topics)))
    if reach.needs_all:
        message = f"{live.version} may change any row of {', '.join(reach.topics)} again, by its own code"
        raise ReleaseError(message, hint=f"Release {code.version} instead: riverrun release start.")
    return reach


def repairable_part(live: ConnectedApplication, code: ConnectedApplication, scope: Scope) -> Scope | None:
    """Return the part of a scope whose records the live version has processed, and whose rows would stay; None if empty."""
    tps = _partitions(live)
    known = live.committed(tps)
    whole = _processed(live, {tp: found.offset for tp, found in known.items()}, tps)
    began = offsets_at_time(live.admin, whole, scope.start_ms)
    times = {tp: OffsetMetadata.decode(found.metadata).partition_time for tp, found in known.items() if found.offset}
    if all(began[tp] == each.end for tp, each in whole.items()):
        # Where all processed records are deleted, only the committed time shows whether some were of the scope.
        gone = (tp for tp, each in whole.items() if each.start and not each.size and tp in times)
        lost = next((tp for tp in gone if not 0 <= times[tp] < scope.start_ms), None)
        if lost is not None:
            raise _deleted(lost, whole[lost].start)
        return None
    grace_ms = _grace_to_wait_for(live, code, scope, reach_of(live, code, scope))
    if grace_ms is None:
        return scope
    # Rows stay once the time of every partition has passed the end of their window, and its grace.
    reached_ms = min((time for tp, time in times.items() if whole[tp].size and time >= 0), default=scope.end_ms)
    end_ms = min(scope.end_ms, reached_ms - grace_ms - 1)
    return replace(scope, end_ms=end_ms) if scope.start_ms < end_ms else None


def range_of(live: ConnectedApplication, code: ConnectedApplication, scope: Scope, reach: Reach) -> RunRange:
    """Return the range to process: from the first record of the scope's time up to the live version's position."""
    admin, tps = live.admin, _partitions(code)
    _require_all_kept(live, tps)
    reached = {tp: found.offset for tp, found in live.committed(tps).items()}
    if not reached:
        require_new(live.resolved(), tps)
        message = f"{live.id} has never run: there is nothing to repair"
        raise RangeError(message, hint=f"Run it first: riverrun run {live.application.config.name}")
    whole = _processed(live, reached, tps)
    starts = {tp: each.start for tp, each in whole.items()}
    # Rows of windows may depend on records that lie before them by the retention of their stores.
    if not reach.needs_all:
        starts = offsets_at_time(admin, whole, scope.start_ms - reach.kept_ms)
    # A range that begins with the first record that is left may have lost earlier ones to retention.
    lost = next((tp for tp, each in whole.items() if each.start and starts[tp] == each.start), None)
    if lost is not None:
        raise _deleted(lost, whole[lost].start)
    grace_ms = _grace_to_wait_for(live, code, scope, reach)
    if grace_ms is not None:
        _require_closed(live, whole, scope.end_ms + grace_ms + 1)
    return RunRange({tp: OffsetRange(starts[tp], each.end) for tp, each in sorted(whole.items())})


def _grace_to_wait_for(
    live: ConnectedApplication, code: ConnectedApplication, scope: Scope, reach: Reach
) -> int | None:
    """Return the time after which windows are closed, ms; None if they may be open."""
    # The live version's own code computes an open window as the live version has. Not so if rows are written when it closes:
    # a run may have closed it by advancing event time, of which no record gives evidence.
    may_be_open = scope.may_be_open and code.version == live.version and not reach.is_final
    return None if may_be_open else reach.grace_ms


def _deleted(tp: TopicPartition, first: int) -> RangeError:
    message = f"{tp} begins at offset {first}: earlier records of the range may have been deleted"
    return RangeError(message, hint="Repair a range that begins later than the first record that is left.")


def _partitions(version: ConnectedApplication) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic, count in version.resolved().partitions.items() for n in range(count)]


def _processed(
    live: ConnectedApplication, reached: Mapping[TopicPartition, int], tps: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """Return what is left of the records that the live version has processed."""
    first = live.admin.beginning_offsets(tps)
    return {tp: OffsetRange(start, max(start, reached.get(tp, 0))) for tp, start in first.items()}


def _require_closed(live: ConnectedApplication, whole: Mapping[TopicPartition, OffsetRange], at_ms: int) -> None:
    """Make sure that no window of the scope may change any more: the live version would publish it again."""
    closing = offsets_at_time(live.admin, whole, at_ms)
    still = next((tp for tp, each in whole.items() if each.size and closing[tp] == each.end), None)
    if still is not None:
        message = (
            f"{live.id} has no record of {still} yet that closes the last window of the range, which may still change"
        )
        raise ReleaseError(message, hint="Repair a range that ends earlier, or wait for later records.")


def _require_all_kept(live: ConnectedApplication, tps: Iterable[TopicPartition]) -> None:
    for topic in sorted({tp.topic for tp in tps}):
        if "compact" in live.admin.topic_config(topic)["cleanup.policy"]:
            message = f"{topic} is compacted: it may lack the records from which rows of that time were computed"
            raise ReleaseError(message, hint="A new version computes all rows from what is left.")
