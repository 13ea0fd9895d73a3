"""The inputs of a task that are tables: after a long absence, rows may be gone from a topic without a trace.

A task continues from its committed offsets. Only tombstones show what was deleted since, and brokers remove them in time. So
the metadata of these offsets has the time at which the task had read all of its tables (`kafka.tombstones`). If that is too
long ago, the task looks for the rows that the topic no longer has, and processes a deletion for each.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, RangeError, StateError
from riverrun.hosting.local_state import open_backend
from riverrun.kafka.ranges import read_fields
from riverrun.kafka.tombstones import FOREVER_MS, Following, oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import RAW_KEY, OffsetRange, Whole
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.kafka.tombstones import Incomplete
    from riverrun.records import TopicPartition
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.task import Task

log = logging.getLogger(__name__)

_LOOK_SECONDS = 3.0
"""Interval at which the ends of inputs are asked for."""


@dataclass(slots=True)
class TableInputs:
    """The compacted inputs of a task that are tables.

    Args:
        kept_ms: How long brokers keep tombstones in them.
        present: The keys of inputs whose deleted rows have to be looked for.
    """

    kept_ms: int = FOREVER_MS
    following: Following = field(default_factory=lambda: Following(None))
    present: Mapping[TopicPartition, frozenset[bytes]] = field(default_factory=dict)
    tps: frozenset[TopicPartition] = frozenset()
    warnings: tuple[str, ...] = ()

    @classmethod
    def begun(cls, admin: Admin, spec: TaskSpec, commits: Mapping[TopicPartition, CommittedOffset]) -> TableInputs:
        """Find out which deletions a task may have missed."""
        tps = frozenset(tp for tp in spec.inputs if tp.topic in spec.sub_topology.table_sources)
        if not tps:
            return cls()
        now = whole_now(admin, {tp.topic for tp in tps})
        first, last = admin.log_starts(tps), admin.end_offsets(tps)
        wholes: list[Whole | None] = []
        warnings: list[str] = []
        present: dict[TopicPartition, frozenset[bytes]] = {}
        for tp in tps & commits.keys():
            found = commits[tp]
            known = OffsetMetadata.decode(found.metadata).whole
            # A task that has read nothing yet has no rows that could have been deleted.
            reason = why_incomplete(admin, known, now, {tp: found.offset} if found.offset > first[tp] else {})
            wholes.append(since(known, now))
            if reason is not None:
                named = {"task": str(spec.id)}
                warnings.append(f"Rows of {tp} may have been deleted while nothing ran: {reason}")
                if first[tp]:
                    log.warning(
                        "task %s: %s. Rows are not looked for: records were deleted, too", spec.id, reason, extra=named
                    )
                else:
                    log.warning("task %s looks for rows that %s no longer has: %s", spec.id, tp, reason, extra=named)
                    present[tp] = _keys(admin.alone(), tp, OffsetRange(first[tp], last[tp]))
        if now.kept_ms == FOREVER_MS:
            return cls(present=present, warnings=tuple(warnings))
        following = Following(oldest([now, *wholes]))
        following.look(now, last, {tp: commits[tp].offset for tp in tps & commits.keys()})
        return cls(now.kept_ms, following, present, tps, tuple(warnings))

    @property
    def whole(self) -> Whole | None:
        """Return when the task had read all of them; None if it has none."""
        return self.following.whole

    def remove_rows(self, task: Task) -> None:
        """Let a task process deletions of the rows that its inputs no longer have, before anything else."""
        for tp, keys in self.present.items():
            count = task.remove_rows(tp, keys)
            log.warning(
                "task %s: %d rows of %s had been deleted", task.spec.id, count, tp, extra={"task": str(task.spec.id)}
            )
        self.present = {}

    def reach(self, task: Task) -> None:
        """Note before a commit how far a task has read, where nothing does so at intervals: bounded runs end soon."""
        self.following.reach({tp: task.position(tp) for tp in self.tps})

    def require_recent(self, admin: Admin) -> None:
        """Make sure before a commit that the task has missed no deletion among what it has read."""
        try:
            require_recent(admin, self.whole)
        # This process was stopped for too long. The task is taken over again, which finds the deletions.
        except RangeError as error:
            raise BrokerError(error.message, retriable=True, hint=error.hint) from error


class TableLooks:
    """Notes at intervals how far tasks have read their tables."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._looked_at = time.monotonic()

    def run_if_due(self, running: Callable[[], Collection[tuple[TableInputs, Task]]]) -> None:
        """Note how far tasks have read, if that is due. Asks for all ends with one request."""
        if time.monotonic() < self._looked_at + _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        tasks = running()
        tps = {tp for tables, _ in tasks for tp in tables.tps}
        if not tps:
            return
        try:
            # The time comes first: `Following` needs ends that were asked for after it.
            now_ms, ends = self._admin.clock.noted_ms(), self._admin.end_offsets(tps)
        except BrokerError as error:
            if not error.retriable:
                raise
            return
        for tables, task in tasks:
            own = {tp: ends[tp] for tp in tables.tps}
            tables.following.look(Whole(now_ms, tables.kept_ms), own, {tp: task.position(tp) for tp in own})


def _keys(admin: Admin, tp: TopicPartition, offsets: OffsetRange) -> frozenset[bytes]:
    """Return the keys of all records, those of tombstones included: these are processed when it is their turn."""
    batches = read_fields(admin, {tp: offsets})
    return frozenset(key for _, records in batches for each in records if (key := each[RAW_KEY]) is not None)


def absences(connected: ConnectedApplication) -> Iterator[str]:
    """Yield warnings about tables that nothing has read for too long, and about state on this machine that nothing has used."""
    # What only shows a state writes nothing, not even to ask for the brokers' time.
    connected = replace(connected, admin=connected.admin.silent())
    admin, application = connected.admin, connected.application
    committed = connected.noted(connected.inputs)
    for task_id, inputs in sorted(connected.layout.tasks.items()):
        spec = application.task_spec(task_id, inputs)
        for tp in (tp for tp in inputs if tp.topic in spec.sub_topology.table_sources and tp in committed):
            now, known = whole_now(admin, [tp.topic]), OffsetMetadata.decode(committed[tp].metadata).whole
            if reason := why_incomplete(admin, known, now, {tp: committed[tp].offset}):
                yield f"the next start of task {task_id} reads all of {tp}: {reason}"
        if lacks := _of_state(connected, spec):
            yield f"the next start of task {task_id} here restores all of its state: {lacks}"


def _of_state(connected: ConnectedApplication, spec: TaskSpec) -> Incomplete | None:
    directory = connected.application.directory / str(spec.id)
    # RocksDB has a file `CURRENT` in each database.
    if not (directory / "CURRENT").exists():
        return None
    try:
        with closing(open_backend(spec.sub_topology, directory)) as backend:
            whole: Whole | None = backend.whole()
            own = set(spec.own_changelogs.values())
            positions = {tp: offset for tp, offset in backend.positions().items() if tp in own and offset}
    # In use, or damaged: its next user finds out.
    except StateError:
        return None
    now = whole_now(connected.admin, {tp.topic for tp in positions})
    return why_incomplete(connected.admin, whole, now, positions)
