"""Finds which changelog records the local state of a task lacks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.records import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.runtime.task_spec import TaskSpec
    from riverrun.state.api import StateBackend

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """The part of its changelogs that a task's local state lacks.

    Args:
        backend: The state.
        ranges: The missing offsets of each changelog; empty if none are missing.
    """

    backend: StateBackend
    ranges: Mapping[TopicPartition, OffsetRange]


def find_missing(
    admin: Admin, backend: StateBackend, spec: TaskSpec, committed: Mapping[TopicPartition, int]
) -> Missing:
    """Find the changelog records that a task's local state lacks.

    Deletes state that was not made from the present changelogs; such state then lacks all of their records.

    Args:
        admin: Asks the brokers.
        backend: The state.
        spec: The task.
        committed: Committed offsets of its inputs. Read-only stores are restored from inputs up to these offsets.

    Returns:
        The missing ranges.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    sources = set(spec.source_changelogs.values())
    tps = sources.union(spec.own_changelogs.values())
    first, last = admin.beginning_offsets(tps), dict(admin.end_offsets(tps))
    last |= {tp: max(first[tp], committed.get(tp, 0)) for tp in sources}
    known, noted = backend.positions(), backend.topic_ids()
    ids = admin.topic_ids({tp.topic for tp in tps})
    starts = {tp: known.get(tp, 0) for tp in tps}
    # State ahead of the last stable offset is committed, but its marker is not there yet; or the state is foreign.
    ahead = [tp for tp in tps - sources if starts[tp] > last[tp]]
    last |= {tp: max(last[tp], min(starts[tp], end)) for tp, end in admin.written_offsets(ahead).items()}
    reasons = (
        _why_foreign(tp, start, first[tp], last[tp], is_same_topic=noted.get(tp.topic, ids[tp.topic]) == ids[tp.topic])
        for tp, start in starts.items()
    )
    reason = next(filter(None, reasons), None)
    if reason is not None:
        log.warning("task %s restores all of its state: %s", spec.id, reason, extra={"task": str(spec.id)})
        backend.wipe()
        starts, noted = dict.fromkeys(tps, 0), {}
    if not ids.items() <= noted.items():
        backend.note_topic_ids(ids)
    return Missing(backend, {tp: OffsetRange(max(start, first[tp]), last[tp]) for tp, start in starts.items()})


def _why_foreign(tp: TopicPartition, start: int, first: int, last: int, *, is_same_topic: bool) -> str | None:
    """Return why state at an offset was not made from a changelog with records from `first` to `last`; None if it was.

    Offsets alone do not tell: a topic that was deleted and created again (by a reset from another machine) soon reaches them.
    """
    if not is_same_topic:
        return f"the local state is at offset {start} of another topic {tp.topic}, which has been recreated since"
    if start > last or 0 < start < first:
        return f"the local state is at offset {start} of {tp}, which has {first} to {last}"
    return None
