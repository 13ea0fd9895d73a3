"""Watches what becomes public, in the order in which brokers commit it, and notes what must never happen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.hosting.gated import HeldState
from riverrun.hosting.release import CONTROL_TOPIC, SWITCHING, Release, ReleaseStep, release_in
from tests.histories.versions import COUNTS, LOGS, SEEN, TABLES, VERSIONS, WINDOWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.records import TopicPartition
    from riverrun.simulation.brokers import Brokers
    from riverrun.simulation.partition_log import Appended, BatchWriter, LogEntry, NewRecord
    from riverrun.simulation.transactions import Owner
    from tests.histories.versions import Click

DAMAGE = "damage"
"""In the place of the version, in a row that another program has written."""
RELEASE_RECORD = "a record of a release"
"""In the place of a request: a host is about to write such a record, under the lock of the release."""


@dataclass
class Watch:
    """All that has become public.

    Args:
        clicks: All records of the input so far.
        release: The record of the application as it was committed last.
        rows: The last public value of each key, by table.
        logs: How often each record is in each log, by number.
        lookers: Users that must change nothing.
        damaged: Rows that another program has written, by topic and key.
        wrong: What should not have happened.
    """

    brokers: Brokers
    app: str
    clicks: list[Click]
    exactly_once: bool = True
    release: Release = field(default_factory=lambda: Release("", "v1"))
    rows: dict[str, dict[Any, Any]] = field(default_factory=lambda: {topic: {} for topic in TABLES})
    logs: dict[str, Counter[int]] = field(default_factory=lambda: {topic: Counter() for topic in LOGS})
    lookers: set[str] = field(default_factory=set)
    damaged: set[tuple[str, Any]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._mark, self._produce = self.brokers.mark, self.brokers.produce
        self.brokers.mark = self.mark  # type: ignore[method-assign]
        self.brokers.produce = self.produce  # type: ignore[method-assign]

    def mark(self, owner: Owner, tps: Iterable[TopicPartition], groups: Iterable[str], *, commits: bool) -> bool:
        """Stand in for the brokers' method that ends transactions."""
        written = {tp: self._written(owner, tp) for tp in tps if self._is_watched(tp)} if commits else {}
        if not self._mark(owner, tps, groups, commits=commits):
            return False
        for tp, entries in written.items():
            for entry in entries:
                self.note(tp.topic, entry)
        return True

    def produce(
        self, tp: TopicPartition, records: Sequence[NewRecord], writer: BatchWriter, transactional_id: str | None
    ) -> Appended:
        """Stand in for the brokers' method that appends records: those without a transaction are public at once."""
        if tp.topic == CONTROL_TOPIC and (fault := self.brokers.faults.fault("", RELEASE_RECORD)) is not None:
            self.brokers.waiting.wait_until(lambda: False, fault.delay_s)
        end = self.brokers.topics.log(*tp).end if self._is_watched(tp) else 0
        found = self._produce(tp, records, writer, transactional_id)
        if transactional_id is None and self._is_watched(tp) and found.offset >= end:
            for entry in self.brokers.topics.log(*tp).entries[-len(records) :]:
                self.note(tp.topic, entry)
        return found

    def note(self, topic: str, entry: LogEntry) -> None:
        """Take note of a record that has become public, or of the control topic's."""
        if topic == CONTROL_TOPIC:
            self._note_release(entry)
        elif topic in LOGS:
            self._note_logged(topic, entry.value or b"")
        else:
            self._note_row(topic, entry)

    def _is_watched(self, tp: TopicPartition) -> bool:
        return tp.topic in {CONTROL_TOPIC, *LOGS, *TABLES} and self.brokers.topics.has(*tp)

    def _written(self, owner: Owner, tp: TopicPartition) -> list[LogEntry]:
        """Return the records of the transaction of a producer that is about to end."""
        found: list[LogEntry] = []
        for entry in reversed(self.brokers.topics.log(*tp).entries):
            if entry.producer_id == owner.producer_id:
                if entry.is_marker or not entry.is_transactional:
                    break
                found.append(entry)
        return found[::-1]

    def _note_release(self, entry: LogEntry) -> None:
        if entry.key != self.app.encode() or entry.value is None:
            return
        before, now = self.release, release_in({self.app: entry.value}, self.app) or self.release
        self.release = now
        if now.revision != before.revision:
            self._require(
                now.changed_by not in self.lookers, f"{now.changed_by} only looks, and has changed the release"
            )
        if now.step is ReleaseStep.CUTTING and before.step is not ReleaseStep.CUTTING:
            verdict = now.verdict
            self._require(verdict is not None and not verdict.critical, "a cut begins without a verdict")
            self._require(verdict is not None and not verdict.needs_approval, "a cut begins without an approval")
        if now.live != before.live:
            self._require(before.step in SWITCHING, f"{now.live} is live after {before.step.value}")

    def _note_logged(self, topic: str, value: bytes) -> None:
        version, _page, text = value.decode().split()
        number, log = int(text), self.logs[topic]
        self._require_public(version, f"{topic}: record {number}")
        log[number] += 1
        # A version that is computed again publishes the logs that it alone writes from their beginning.
        if self.exactly_once and topic == SEEN:
            self._require(log[number] == 1, f"{topic}: record {number} is public again, from {version}")

    def _note_row(self, topic: str, entry: LogEntry) -> None:
        key, value = row_of(topic, entry)
        rows, before = self.rows[topic], self.rows[topic].get(key)
        if value is None:
            rows.pop(key, None)
            self.damaged.discard((topic, key))
            self._require(self._corrects, f"{topic}: row {key} is deleted")
            return
        rows[key] = value
        version, count = value
        if version == DAMAGE:
            self.damaged.add((topic, key))
            return
        was_damaged = (topic, key) in self.damaged
        self.damaged.discard((topic, key))
        if version:
            self._require_public(version, f"{topic}: row {key}")
        if not self.exactly_once:
            return
        possible = {each: VERSIONS[each].rows(self.clicks)[topic].get(key, 0) for each in self._publishing()}
        self._require(count <= max(possible.values()), f"{topic}: {key} is counted {count} times, of {possible}")
        if not self._corrects and before is not None and before[0] == version and not was_damaged:
            self._require(count > before[1], f"{topic}: {key} was {before[1]}, and is {count}")

    @property
    def _corrects(self) -> bool:
        """Whether corrections may come: a switch, a repair, or a run that is published after its gate."""
        held = self.release.held
        is_published = held is not None and held.state is HeldState.PUBLISHING
        return self.release.step in SWITCHING or is_published or self.release.barrier is not None

    @property
    def is_deciding(self) -> bool:
        """Whether a switch is under way, or a run is being published or thrown away, or state is being carried."""
        held, carry = self.release.held, self.release.carry
        is_decided = held is not None and held.state in {HeldState.PUBLISHING, HeldState.DISCARDING}
        return self.release.step in SWITCHING or is_decided or (carry is not None and not carry.is_done)

    def _publishing(self) -> set[str]:
        """Return the versions that may publish: the live one and, during a switch, the one that becomes live."""
        release = self.release
        coming = {ReleaseStep.CUTTING: release.candidate, ReleaseStep.ROLLING_BACK: release.previous}.get(release.step)
        return {release.live} | ({coming} if coming else set())

    def _require_public(self, version: str, what: str) -> None:
        if self.exactly_once:
            self._require(
                version in self._publishing(),
                f"{what} is of {version}, and {self.release.live} is live, {self.release.step.value}",
            )

    def _require(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.wrong.append(what)


def row_of(topic: str, entry: LogEntry) -> tuple[Any, tuple[str, int] | None]:
    """Return key and value of a public row: the version that it names, if it does, and its count."""
    key, value = entry.key or b"", entry.value
    if topic == COUNTS:
        return key.decode(), None if value is None else ("", int.from_bytes(value, "big"))
    assert topic == WINDOWS
    window = key[:-8].decode(), int.from_bytes(key[-8:], "big")
    if value is None:
        return window, None
    version, _, count = value.decode().partition(" ")
    return window, (version, int(count))
