"""Tells what a version would have to make again if it started now, as it was away for longer than brokers keep deletions."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from riverrun.errors import StateError
from riverrun.hosting.local_state import open_backend
from riverrun.kafka.tombstones import whole_now, why_incomplete
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import Whole
    from riverrun.runtime.layout import TaskSpec


def absences(connected: ConnectedApplication) -> Iterator[str]:
    """Yield warnings about tables that nothing has read for too long, and about state on this machine that nothing has used.

    Args:
        connected: The version; its patterns are resolved. Nothing runs it.

    Raises:
        BrokerError: If brokers do not answer.
    """
    admin, application = connected.admin, connected.application
    committed = connected.noted(connected.inputs)
    for task_id, inputs in sorted(connected.layout.tasks.items()):
        spec = application.task_spec(task_id, inputs)
        for tp in (tp for tp in inputs if tp.topic in spec.sub_topology.table_sources and tp in committed):
            now, known = whole_now(admin, [tp.topic]), OffsetMetadata.decode(committed[tp].metadata).whole
            if reason := why_incomplete(admin, known, now, {tp: committed[tp].offset}):
                yield f"the next start of task {task_id} reads all of {tp}: {reason}"
        if reason := _of_state(connected, spec):
            yield f"the next start of task {task_id} here restores all of its state: {reason}"


def _of_state(connected: ConnectedApplication, spec: TaskSpec) -> str | None:
    directory = connected.application.directory / str(spec.id)
    if not (directory / "CURRENT").exists():
        return None
    try:
        with closing(open_backend(spec.sub_topology, directory)) as backend:
            whole: Whole | None = backend.whole()
            own = set(spec.own_changelogs.values())
            positions = {tp: offset for tp, offset in backend.positions().items() if tp in own and offset}
    except StateError:  # in use, or damaged
        return None
    now = whole_now(connected.admin, {tp.topic for tp in positions})
    return why_incomplete(connected.admin, whole, now, positions)
