"""Polls the state of applications, and what is new in topics, for tasks and triggers that wait. They change nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import RangeError
from riverrun_airflow.sessions import front_door, now_ms, releaser_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.config import ProjectConfig
    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, TopicPartition

_MINUTE_MS = 60_000
# The last offsets of a partition, whose records give its event time. The very last ones may be transaction markers.
_LAST_OFFSETS = 10


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one poll.

    Args:
        is_over: Whether the wait is over: the expected state is reached, or never will be.
        found: The finding; empty if there is none.
    """

    said: str
    is_over: bool
    found: str = ""


def look(project: ProjectConfig, kind: str, **wanted: Any) -> Look:
    """Poll once the state of an application or of topics. `wanted` are the arguments of the function of that kind."""
    kinds: dict[str, Callable[..., Look]] = {
        "ready": _ready,
        "watched": _watched,
        "processed": _processed,
        "idle": _idle,
        "arrived": _arrived,
    }
    return kinds[kind](project, **wanted)


def _ready(project: ProjectConfig, app: str, max_lag: int) -> Look:
    """Check whether workers of a candidate have a lag of at most `max_lag` offsets; without workers there is no wait."""
    releaser = releaser_of(project, app, "", "")
    if not releaser.is_followed():
        return Look("no workers of the candidate run", is_over=True)
    ready = next(iter(releaser.wait_ready(max_lag=max_lag, looks=1)))
    return Look(str(ready), ready.is_ready)


def _watched(project: ProjectConfig, app: str, version: str, until_ms: int, max_lag: int) -> Look:
    """Check whether a version stays live until a time; findings are that it is not, or its lag exceeds `max_lag` (0: any)."""
    from riverrun.hosting.inputs import beyond_warning
    from riverrun.hosting.process import SystemClock

    release = releaser_of(project, app, "", "").status()
    if release.live != version:
        return Look(f"{release.live} is live", is_over=True, found=f"{version} is not live: {release.progress}")
    lags = front_door(project).app(app, version=version).lag()
    lag, beyond = sum(each.lag for each in lags), beyond_warning(lags)
    found = f"{version} is {lag} offsets behind" if 0 < max_lag < lag else ""
    said = f"{version} is live, {beyond or f'{lag} offsets behind'}"
    return Look(said, SystemClock().now_ms() >= until_ms, f"{version}: {beyond}" if beyond else found)


def _processed(project: ProjectConfig, app: str, version: str, end: str) -> Look:
    """Check whether an application has processed everything before a vector, wherever it runs."""
    from riverrun.hosting.kept_offsets import KeptOffsets
    from riverrun.records import OffsetVector

    wanted, admin = OffsetVector.parse(end).offsets, front_door(project).cluster.admin
    application_id = project.app(app).application_id(version)
    done = admin.committed(application_id, wanted)
    # Committed offsets expire when a group is idle for long; copies of them are kept for that.
    done |= KeptOffsets(admin, application_id).last(wanted.keys() - done.keys())
    left = sum(max(0, offset - (done[tp].offset if tp in done else 0)) for tp, offset in wanted.items())
    return Look(f"{app} {version} has {left} offsets left", is_over=not left)


def _idle(project: ProjectConfig, app: str) -> Look:
    """Check whether the application has no bounded run under way."""
    from riverrun.spark.runs import RUNNING

    alive = [run for run in front_door(project).app(app).runs.history() if run.state == RUNNING]
    return Look(f"{alive[0].by} runs {alive[0].range}" if alive else f"no run of {app} is under way", not alive)


def _arrived(project: ProjectConfig, **awaited: Any) -> Look:
    """Check whether topics have the awaited new records; the finding is an `Arrived` as JSON."""
    found = arrived(project, Awaited(**awaited))
    said = f"{found.records} new offsets{f' ({found.reason})' if found.reason else ''}: {found.offsets or 'none'}"
    return Look(said, bool(found.reason), msgspec.json.encode(found.told()).decode())


@dataclass(frozen=True, slots=True)
class Awaited:
    """The condition under which new records are reported; if it names several, the first that holds.

    Args:
        records: Number of new offsets: records, and transaction markers. 0 if the number does not matter.
        minutes: Minutes after which any new record is reported; 0 if time does not matter.
        event_time_ms: Event time, ms since the epoch, that all partitions with new records must have reached; 0 if it does not
            matter.
        since: Offsets from which records are new, as text. Partitions that it leaves out are new from their first record.
        since_ms: The time from which `minutes` count, ms since the epoch.
    """

    topics: Sequence[str]
    records: int = 0
    minutes: float = 0.0
    event_time_ms: int = 0
    since: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """New records of topics at one poll.

    Args:
        offsets: The new offsets, as text (`clicks-0@5..9`); those of partitions without new records are left out.
        end: End offsets (exclusive) of all partitions, as text.
        event_time_ms: The lowest event time that partitions with new records have reached, ms since the epoch; None if it
            does not matter, or is unknown.
        reason: `records`, `minutes` or `event_time`, the condition that holds; empty if none does.
    """

    offsets: str
    end: str
    records: int
    event_time_ms: int | None = None
    reason: str = ""

    def told(self) -> dict[str, Any]:
        """Return it as JSON has it, with the event time as text."""
        known = self.event_time_ms is not None
        at = datetime.fromtimestamp((self.event_time_ms or 0) / 1000, UTC).isoformat() if known else None
        return {
            "offsets": self.offsets,
            "end": self.end,
            "records": self.records,
            "reason": self.reason,
            "event_time": at,
        }


def arrived(project: ProjectConfig, awaited: Awaited) -> Arrived:
    """Poll once what is new in topics. Only committed records count."""
    from riverrun.records import OffsetRange, OffsetVector
    from riverrun.spark.ranges import RunRange

    admin = front_door(project).cluster.admin
    ends, since = _ends(admin, awaited.topics), OffsetVector.parse(awaited.since).offsets
    first = admin.beginning_offsets(ends)
    # A partition that ends before its position belongs to a topic that was created again.
    starts = {tp: max(first[tp], since.get(tp, 0) if since.get(tp, 0) <= end else 0) for tp, end in ends.items()}
    new = {tp: OffsetRange(starts[tp], end) for tp, end in ends.items() if starts[tp] < end}
    count, at = sum(each.size for each in new.values()), None
    if awaited.event_time_ms and new:
        at = _event_time(admin, new, first)
    return Arrived(str(RunRange(new)), str(OffsetVector(ends)), count, at, reason_of(awaited, count, at, now_ms()))


def reason_of(awaited: Awaited, records: int, event_time_ms: int | None, at_ms: int) -> str:
    """Return the condition that holds; empty if none does, or nothing is new.

    >>> reason_of(Awaited(["clicks"], records=10, minutes=5), 3, None, 300_000)
    'minutes'
    """
    if not records:
        return ""
    if awaited.records and records >= awaited.records:
        return "records"
    if awaited.event_time_ms and event_time_ms is not None and event_time_ms >= awaited.event_time_ms:
        return "event_time"
    if awaited.minutes and at_ms - awaited.since_ms >= awaited.minutes * _MINUTE_MS:
        return "minutes"
    return ""


def position(project: ProjectConfig, topics: Sequence[str], text: str) -> str:
    """Return offsets as text: those of `latest` or `earliest`, or a vector after a check."""
    from riverrun.records import OffsetVector

    if text not in {"latest", "earliest"}:
        try:
            return str(OffsetVector.parse(text))
        except ValueError as error:
            raise RangeError(f"{text!r} is neither latest, earliest, nor a vector (topic-0@12,topic-1@7)") from error
    admin = front_door(project).cluster.admin
    ends = _ends(admin, topics)
    return str(OffsetVector(ends if text == "latest" else admin.beginning_offsets(ends)))


def _ends(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, int]:
    from riverrun.records import TopicPartition

    admin.require(topics, "watched for new records")
    counts = admin.partitions(topics)
    return admin.end_offsets(TopicPartition(topic, n) for topic in topics for n in range(counts[topic]))


def _event_time(
    admin: Admin, new: Mapping[TopicPartition, OffsetRange], first: Mapping[TopicPartition, int]
) -> int | None:
    """Return the lowest event time that partitions have reached; None if one has no records among its last offsets."""
    from riverrun.kafka.ranges import read_fields
    from riverrun.records import RAW_TIMESTAMP, OffsetRange

    last = {tp: OffsetRange(max(first[tp], each.end - _LAST_OFFSETS), each.end) for tp, each in new.items()}
    times: dict[TopicPartition, int] = {}
    try:
        for tp, batch in read_fields(admin, last):
            times[tp] = max([times.get(tp, 0), *(fields[RAW_TIMESTAMP] for fields in batch)])
    except RangeError:  # retention has deleted them meanwhile
        return None
    return min(times.values()) if times.keys() == last.keys() else None


def fields_of(awaited: Awaited) -> dict[str, Any]:
    """Return a condition as a trigger serializes it."""
    return {**asdict(awaited), "topics": list(awaited.topics)}


def time_ms(text: str) -> int:
    """Return a time as ms since the epoch; 0 for an empty text. One without a zone is in UTC.

    >>> time_ms("1970-01-01T00:01:00+00:00"), time_ms("")
    (60000, 0)
    """
    from riverrun.spark.ranges import time_ms as parsed

    return parsed(text) if text else 0
