"""Resolves the offsets that a bounded run processes: start and end of each partition."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.hosting.inputs import SHORTER, reset_offsets
from riverrun.hosting.ownership import settled_offsets
from riverrun.hosting.process import SystemClock
from riverrun.hosting.topic_ids import committed_ids, found_ids, require_same
from riverrun.kafka.ranges import check_ranges, offsets_at_time
from riverrun.records import EPOCH, OffsetRange, OffsetVector, TopicPartition, moment, shortened, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.hosting.connected import ConnectedApplication

log = logging.getLogger(__name__)

COMMITTED = "committed"
EARLIEST = "earliest"
LATEST = "latest"
# Hint about records that are processed already.
AGAIN = (
    "To process records again, release a new version, which begins at the first record (riverrun release), or start over"
    " (riverrun reset); --dry-run --from earliest only shows the results."
)
_TIME_HINT = "Times are written as 2013-07-01T00:00:00+00:00."


@dataclass(frozen=True, slots=True)
class RunRange:
    """The source partitions of a run, with the offsets to process of each.

    Runs are stored and repeated by its text form: `orders-0@0..120,orders-1@5..90`.

    >>> print(RunRange.parse("b-0@1..4,a-1@0..2"))
    a-1@0..2,b-0@1..4
    """

    ranges: Mapping[TopicPartition, OffsetRange]

    def __str__(self) -> str:
        return ",".join(f"{tp}@{r}" for tp, r in sorted(self.ranges.items()))

    @classmethod
    def parse(cls, text: str) -> RunRange:
        ranges: dict[TopicPartition, OffsetRange] = {}
        for entry in filter(None, text.split(",")):
            name, _, bounds = entry.strip().rpartition("@")
            start, _, end = bounds.partition("..")
            found = whole_number(start), whole_number(end)
            try:
                tp = TopicPartition.parse(name)
            except ValueError as error:
                raise _malformed(entry) from error
            if found[0] is None or found[1] is None:
                raise _malformed(entry)
            ranges[tp] = _range(tp, found[0], found[1])
        return cls(ranges)

    @property
    def size(self) -> int:
        """Number of offsets; an upper bound of the records."""
        return sum(r.size for r in self.ranges.values())

    @property
    def start(self) -> OffsetVector:
        return OffsetVector({tp: r.start for tp, r in self.ranges.items()})

    @property
    def end(self) -> OffsetVector:
        return OffsetVector({tp: r.end for tp, r in self.ranges.items()})


def resolve(
    connected: ConnectedApplication,
    start: str = COMMITTED,
    end: str = LATEST,
    *,
    may_be_passed: bool = False,
    warns: bool = True,
) -> RunRange:
    """Turn a user's request into offsets.

    `start` is `committed` (where the application stands; if it never ran, where its sources or `auto.offset.reset` say),
    `earliest`, a vector or a time. `end` is `latest` (last stable offsets), a vector or a time. A time means the first record
    at or after it. If the end `may_be_passed`, partitions that were processed beyond it have nothing to process; `warns` says
    whether that is worth a warning.
    """
    connected, admin = connected.resolved(), connected.admin
    # First, so that a missing topic hides no mistake in them.
    for bound in (start, end):
        _check_bound(bound)
    topics = connected.topology.source_topics
    if set(topics) - admin.partitions(topics).keys():
        connected.require_topics(f"Topics that application {connected.id} reads", topics)
    tps = [TopicPartition(t, n) for t, count in admin.partitions(topics).items() for n in range(count)]
    first = _bound(connected, tps, start)
    last = _bound(connected, tps, end)
    may_be_passed = may_be_passed or _is_time(end)
    ends = (
        _from_where_it_stands(connected, first, last, may_be_passed=may_be_passed, warns=warns)
        if start == COMMITTED
        else last
    )
    chosen = RunRange({tp: _range(tp, first[tp], ends[tp]) for tp in sorted(tps)})
    check_ranges(admin, chosen.ranges)
    return chosen


def completed(connected: ConnectedApplication, run_range: RunRange) -> RunRange:
    """Return a range with all partitions of its topics; those that were added since get an empty range where they stand."""
    counts = connected.admin.partitions(connected.topology.source_topics)
    new = {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)} - run_range.ranges.keys()
    stands = _bound(connected, new, COMMITTED) if new else {}
    return RunRange({**run_range.ranges, **{tp: OffsetRange(offset, offset) for tp, offset in sorted(stands.items())}})


def _from_where_it_stands(
    connected: ConnectedApplication,
    stands: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    may_be_passed: bool,
    warns: bool,
) -> Mapping[TopicPartition, int]:
    """Return the ends; partitions that were processed beyond the requested end, if they may be, end where they stand."""
    # Asking for a day that is done is no mistake; a person that asks for an offset that was processed makes one.
    beyond = sorted(tp for tp in stands if ends[tp] < stands[tp])
    written = connected.admin.end_offsets(beyond)
    for tp in beyond:
        if written[tp] < stands[tp]:
            message = f"{connected.id} is at offset {stands[tp]} of {tp}, which ends at {written[tp]}"
            raise RangeError(message, hint=SHORTER)
        if not may_be_passed:
            message = f"{connected.id} is at offset {stands[tp]} of {tp}: {ends[tp]} as the end was already processed"
            raise RangeError(message, hint=AGAIN)
    if warns and beyond and not any(stands[tp] < ends[tp] for tp in stands):
        log.warning(
            "%s is at or beyond the requested end: everything up to it was already processed. %s",
            connected.id,
            AGAIN,
        )
    return {tp: max(end, stands[tp]) for tp, end in ends.items()}


def _is_time(text: str) -> bool:
    return text not in {COMMITTED, EARLIEST, LATEST} and "@" not in text


def _check_bound(text: str) -> None:
    if "@" in text:
        _parsed(text)
    elif _is_time(text):
        _bound_ms(text)


def _parsed(text: str) -> OffsetVector:
    try:
        return OffsetVector.parse(text)
    except ValueError as error:
        raise RangeError(str(error)) from error


def _bound(connected: ConnectedApplication, tps: Iterable[TopicPartition], text: str) -> dict[TopicPartition, int]:
    admin, partitions = connected.admin, list(tps)
    match text:
        case "committed":
            known = settled_offsets(connected, partitions)
            # Offsets of a topic that was recreated since mean nothing in the new one.
            present = found_ids(admin, {tp.topic for tp in partitions})
            require_same(connected.application, committed_ids(known, connected.id).items(), present)
            missing = [tp for tp in partitions if tp not in known]
            starts = reset_offsets(connected, missing, SystemClock().now_ms())
            return starts | {tp: c.offset for tp, c in known.items()}
        case "earliest":
            return admin.beginning_offsets(partitions)
        case "latest":
            return admin.end_offsets(partitions)
        case _ if "@" in text:
            return _vector(connected, partitions, text)
        case _:
            time_ms, first, last = _bound_ms(text), admin.beginning_offsets(partitions), admin.end_offsets(partitions)
            everything = {tp: OffsetRange(first[tp], last[tp]) for tp in partitions}
            return offsets_at_time(admin, everything, time_ms)


def _vector(connected: ConnectedApplication, partitions: list[TopicPartition], text: str) -> dict[TopicPartition, int]:
    """Return the offsets of a vector; partitions that it leaves out keep their committed offsets."""
    given = _parsed(text).offsets
    unknown = sorted(set(given) - set(partitions))
    if unknown:
        message = f"{connected.id} does not read {', '.join(map(str, unknown))}"
        raise RangeError(message, hint=f"It reads {', '.join(map(str, sorted(partitions)))}.")
    left_out = [tp for tp in partitions if tp not in given]
    return _bound(connected, left_out, COMMITTED) | dict(given)


def time_ms(text: str) -> int:
    """Return a time as ms since the epoch; without a zone it is UTC.

    >>> time_ms("1970-01-01T00:01:00+00:00"), time_ms("1970-01-02"), time_ms("2026-01-01T00:00:00.001Z")
    (60000, 86400000, 1767225600001)
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise RangeError(f"{text!r} is not a time", hint=_TIME_HINT) from error
    return (moment(time) - EPOCH) // timedelta(milliseconds=1)


def _bound_ms(text: str) -> int:
    try:
        return time_ms(text)
    except RangeError as error:
        message = f"{text!r} is neither committed, earliest, latest, a vector (topic-0@12,topic-1@7) nor a time"
        raise RangeError(message, hint=_TIME_HINT) from error


def _malformed(entry: str) -> RangeError:
    return RangeError(f"not a range: {shortened(entry)}", hint="A range reads topic-partition@start..end.")


def _range(tp: TopicPartition, start: int, end: int) -> OffsetRange:
    if end < start:
        message = f"{tp}: the range ends at offset {end}, before its start {start}"
        raise RangeError(message, hint="The end (--to) must not lie before the start (--from).")
    return OffsetRange(start, end)
