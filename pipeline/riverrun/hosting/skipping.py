"""Skips one input record that cannot be processed: commits its offset, and changes nothing else of its task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import ProcessingError, RangeError
from riverrun.hosting.alone import require_nobody
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.inputs import reset_offsets
from riverrun.hosting.kept_offsets import commit_and_keep
from riverrun.hosting.ownership import owning
from riverrun.hosting.process import SystemClock, this_user
from riverrun.kafka.ranges import read_range
from riverrun.processor.handlers import context_of, dead_letter_queue_record, without_trace
from riverrun.records import OffsetRange, RawRecord, TaskId, TopicPartition, shortened
from riverrun.runtime.packs import opened, unguarded, writer_of
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.kafka.producer import TransactionalProducer

SKIPPED_TOPIC = "riverrun-skipped"
# Offsets that are searched at once for the next record: markers of transactions may come before it.
_BATCH_OF_LOG = 1_000


@dataclass(frozen=True, slots=True)
class Skip:
    """A record to skip, with the offset to commit, and metadata that keep the partition's time.

    Args:
        number: Number of the record within its pack, from 1; 0 of a record that is in none.
    """

    task_id: TaskId
    tp: TopicPartition
    record: RawRecord
    offset: int
    metadata: str
    number: int = 0


def plan_skip(connected: ConnectedApplication, tp: TopicPartition, offset: int, number: int = 0) -> Skip:
    """Find a record, and make sure that its task processes it next. `number` is that of a record within a pack, from 1."""
    require_nobody(connected)
    connected = connected.resolved()
    task_id = next((task_id for task_id, inputs in connected.layout.tasks.items() if tp in inputs), None)
    if task_id is None:
        message = f"No task of {connected.id} reads {tp}"
        raise RangeError(message, hint="riverrun lag shows all partitions that it reads.")
    committed = connected.committed([tp]).get(tp)
    stands = reset_offsets(connected, [tp], SystemClock().now_ms())[tp] if committed is None else committed.offset
    record = _next_record(connected.admin, tp, stands)
    if record is None or record.offset != offset:
        raise _elsewhere(connected.application, task_id, tp, offset, record)
    is_internal = tp.topic not in connected.application.topology.source_topics
    found = _skip(task_id, tp, record, committed, is_internal=is_internal)
    if found.number != number:
        raise _other_number(connected.application, found, number)
    return found


def carry_out(connected: ConnectedApplication, planned: Skip) -> Skip:
    """Skip a record: fence its task's owner, and commit the offset after the record.

    The same transaction writes the record to the dead letter topic, if there is one. `riverrun-skipped` records the skip.
    """
    application = connected.application
    connected = connected.resolved()
    with owning(connected, planned.task_id) as owner:
        # Once more, as the task may have progressed meanwhile. From here on, no other owner can commit.
        found = plan_skip(connected, planned.tp, planned.record.offset, planned.number)
        _send_letter(application, found, owner)
        commits = {found.tp: (found.offset, found.metadata)}
        commit_and_keep(owner, application.id, commits, commits)
    _note(connected, found)
    return found


def _next_record(admin: Admin, tp: TopicPartition, start: int) -> RawRecord | None:
    end = admin.end_offsets([tp])[tp]
    for at in range(start, end, _BATCH_OF_LOG):
        for _, records in read_range(admin, {tp: OffsetRange(at, min(at + _BATCH_OF_LOG, end))}):
            if records:
                return records[0]
    return None


def _elsewhere(
    application: Application, task_id: TaskId, tp: TopicPartition, offset: int, record: RawRecord | None
) -> RangeError:
    if record is None:
        return RangeError(f"Task {task_id} of {application.id} has processed all of {tp}: there is nothing to skip")
    message = (
        f"The next record of {tp} that task {task_id} of {application.id} processes is {record.offset}, not {offset}"
    )
    if record.offset > offset:
        return RangeError(message, hint="Earlier records have been processed or skipped already.")
    if tp.topic not in application.topology.source_topics:
        hint = f"Set commit.interval.ms = 0 and start a worker: it commits each record, and stops at {offset}."
        return RangeError(message, hint=hint)
    hint = f"Process what comes before it first: riverrun run {application.config.name} --to {tp}@{offset}"
    return RangeError(message, hint=hint)


def _other_number(application: Application, found: Skip, number: int) -> RangeError:
    place = f"{found.tp}@{found.record.offset}"
    if not found.number:
        return RangeError(f"Offset {found.record.offset} of {found.tp} is no pack: it has no record {number}")
    message = (
        f"Offset {found.record.offset} of {found.tp} is a pack, records that a run has written at once: task"
        f" {found.task_id} of {application.id} processes number {found.number} next, with key {shortened(found.record.key)}"
    )
    skip = f"riverrun skip {application.config.name} {place}#{found.number}"
    hint = (
        "A run that failed may have failed at a later one. Set commit.interval.ms = 0 and start a worker: it commits each"
        f" record, and stops at the one that fails. If that is number {found.number}: {skip}"
    )
    return RangeError(message, hint=hint)


def _skip(
    task_id: TaskId, tp: TopicPartition, record: RawRecord, committed: CommittedOffset | None, *, is_internal: bool
) -> Skip:
    """Return the skip of a record, or of the next record of a pack; later records of the pack stay to be processed."""
    metadata = "" if committed is None else committed.metadata
    if not is_internal:
        return Skip(task_id, tp, record, record.offset + 1, metadata)
    if writer_of(record.headers) is None:
        plain = record._replace(headers=unguarded(record.headers))
        return Skip(task_id, tp, plain, record.offset + 1, metadata)
    known = OffsetMetadata.decode(metadata)
    # The count of records taken is about the pack at the committed offset. Markers may lie between that and this record.
    taken = known.taken if committed is not None and committed.offset == record.offset else 0
    members = list(opened(record.value, record.offset))
    taken = min(taken, len(members) - 1)
    key, value, timestamp, offset, headers = members[taken]
    inner = RawRecord(key, value, timestamp, offset, unguarded(headers))
    is_last = taken + 1 == len(members)
    rest = replace(known, taken=0 if is_last else taken + 1)
    return Skip(task_id, tp, inner, record.offset + is_last, rest.encode(), taken + 1)


def _send_letter(application: Application, skip: Skip, owner: TransactionalProducer) -> None:
    topic = application.dead_letters or application.config.streams.errors_dead_letter_queue_topic_name
    if topic is None:
        return
    record = skip.record
    where = context_of(skip.tp, record, "skip", skip.task_id)
    letter = dead_letter_queue_record(topic, where, ProcessingError(f"Skipped by {this_user()}"))
    # Otherwise an attempt that failed may have written something.
    if application.config.streams.processing_guarantee == EXACTLY_ONCE_V2:
        letter = without_trace(letter)
    owner.send(letter.topic, letter.key, letter.value, letter.timestamp, letter.headers, letter.partition)


def _note(connected: ConnectedApplication, skip: Skip) -> None:
    application = connected.application
    place = f"{skip.tp}@{skip.record.offset}{f'#{skip.number}' if skip.number else ''}"
    name = f"{application.config.name}/{application.version}/{place}"
    note = {"by": this_user(), "at_ms": SystemClock().now_ms(), "task": str(skip.task_id)}
    ControlTopic(connected.admin, SKIPPED_TOPIC).put({name: msgspec.json.encode(note)})
