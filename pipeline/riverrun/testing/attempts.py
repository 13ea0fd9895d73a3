"""Makes a task of the driver again from its last commit, without the records that a handler has set aside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import RawRecord, TopicPartition
    from riverrun.runtime.failures import SetAside
    from riverrun.runtime.ports import Ports


@dataclass(slots=True)
class Attempts:
    """The parts of one task that outlive its attempts.

    Args:
        may_be_needed: True if a handler may set a record aside. Otherwise nothing is noted, which takes a tenth of the time.
        added: The records that were added and are not committed.
        dropped: Records that attempts before the present one have dropped, by reason.
    """

    ports: Ports
    may_be_needed: bool
    added: list[tuple[TopicPartition, RawRecord]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    _offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    _aside: tuple[SetAside, ...] = ()
    _dropped: Counter[str] = field(default_factory=Counter)

    def committed(self, task: Task, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Note a commit."""
        self._offsets |= offsets
        self._aside, self._dropped = task.aside, task.dropped
        self.added = [(tp, record) for tp, record in self.added if tp not in offsets or record.offset >= offsets[tp][0]]

    def another(self, task: Task, aside: SetAside) -> Task:
        """Return a task that continues from the last commit without another record."""
        self._aside = (*self._aside, aside)
        self.dropped, self._dropped = self.dropped + self._dropped, Counter()
        task.close()
        made = Task(task.spec, self.ports)
        made.start(self._offsets)
        made.leave_out(self._aside)
        for tp, record in self.added:
            made.add_records(tp, [record])
        return made
