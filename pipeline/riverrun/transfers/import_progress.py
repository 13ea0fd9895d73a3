"""Stores the progress of imports in a compacted topic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Natural, Small, UnreadableError, Word, foreign_decoder
from riverrun.errors import RangeError, TaskMigratedError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, TopicPartition
    from riverrun.transfers.specs import ImportSpec

IMPORTS_TOPIC = "riverrun-imports"


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions that select the rows of a batch and assign them to parts.

    Args:
        source: As in `ImportSpec`, like all fields.
        format: As above.
        schema: As above.
        key: As above.
        value: As above.
        incremental: As above.
    """

    source: str = ""
    format: str = ""
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    incremental: str | None = None

    @classmethod
    def of(cls, spec: ImportSpec) -> Terms:
        """Return the terms of an import."""
        return cls(spec.source, spec.format, spec.schema, tuple(spec.key), spec.value, spec.incremental)

    def differences(self, other: Terms) -> str:
        """Describe the differences to other terms.

        >>> Terms("a", key=("id",)).differences(Terms("b", key=("id",)))
        "source 'a', not 'b'"
        """
        there = asdict(other)
        pairs = ((name, mine, there[name]) for name, mine in asdict(self).items())
        return "; ".join(f"{name} {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of an import.

    Args:
        number: Number of the batch.
        partitions: Number of the topic's partitions at the time of planning.
        parts: Number of its parts.
        files: Its files.
        above: Lower bound of the column, exclusive, as text; None for none.
        upto: Upper bound of the column, inclusive.
        is_done: Whether it is written completely.
        terms: Select its rows, and assign them to parts.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and none of the records.
    """

    number: Natural = 0
    partitions: Small = 0
    parts: Small = 0
    files: tuple[str, ...] = ()
    above: str | None = None
    upto: str | None = None
    is_done: bool = True
    terms: Terms = Terms()
    topic_id: Word = ""


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """A part of a batch that has been written.

    Args:
        range: The offsets of its records, as text; empty if an earlier version of Riverrun has written it.
    """

    range: str = ""


_batch, _part = foreign_decoder(Batch), foreign_decoder(FinishedPart)


class ImportProgress:
    """Progress of an import: its last batch, finished parts of it, and finished files.

    Args:
        admin: Asks the brokers.
        name: The import's id.
    """

    def __init__(self, admin: Admin, name: str) -> None:
        """Connect. All calls raise `BrokerError` if brokers do not answer."""
        self._topic = ControlTopic(admin, IMPORTS_TOPIC)
        self._name = name

    def last(self) -> Batch:
        """Return the last batch; number 0 if there was none."""
        return self._last(self._topic.read())

    def files(self) -> set[str]:
        """Return the imported files."""
        prefix = f"{self._name}/file/"
        return {name.removeprefix(prefix) for name in self._topic.read() if name.startswith(prefix)}

    def has_parts(self, batch: Batch) -> bool:
        """Return whether a part of a batch has been written."""
        found = self._topic.read()
        return any(self.part_name(batch, part) in found for part in range(batch.parts))

    def is_written(self, batch: Batch, part: int) -> bool:
        """Return whether a part of the last batch has been written.

        Raises:
            RangeError: If it is no longer the last batch.
        """
        found = self._topic.read()
        if self._last(found) != batch:
            message = f"Import {self._name} has continued without batch {batch.number}: it also runs elsewhere"
            raise RangeError(message)
        return self.part_name(batch, part) in found

    def ranges(self, batch: Batch) -> RunRange:
        """Return the offsets of the records of a batch, in the parts that have been written.

        Raises:
            RangeError: If the progress of a part cannot be read.
        """
        found = self._topic.read()
        ranges: dict[TopicPartition, OffsetRange] = {}
        for name in (self.part_name(batch, part) for part in range(batch.parts)):
            try:
                ranges |= RunRange.parse(_part(found.get(name, b"{}")).range).ranges
            except (UnreadableError, RangeError) as error:
                message = f"Record {name} of topic {IMPORTS_TOPIC} cannot be read: {error}"
                hint = "If a newer version of Riverrun wrote it, use that version. Otherwise, check who writes to that topic."
                raise RangeError(message, hint=hint) from error
        return RunRange(ranges)

    def part_name(self, batch: Batch, part: int) -> str:
        """Return the key of a part's progress."""
        return f"{self._name}/part/{batch.number}/{part}"

    def begin(self, batch: Batch, last: Batch) -> None:
        """Record a batch before it is written.

        Args:
            batch: The batch.
            last: The previous batch, or an unwritten one that it replaces.

        Raises:
            TaskMigratedError: If there is another batch by now.
        """
        self._topic.write(self._name, {self._name: msgspec.json.encode(asdict(batch))}, lambda: self._check(last))

    def finish(self, batch: Batch) -> None:
        """Record that a batch is done, and delete the progress of its parts.

        Raises:
            TaskMigratedError: If there is another batch by now.
        """
        values: dict[str, bytes | None] = {self._name: msgspec.json.encode(asdict(replace(batch, is_done=True)))}
        values |= {f"{self._name}/file/{file}": b"{}" for file in batch.files}
        values |= dict.fromkeys(self.part_name(batch, part) for part in range(batch.parts))
        self._topic.write(self._name, values, lambda: self._check(batch))

    def _last(self, found: Mapping[str, bytes]) -> Batch:
        last = found.get(self._name)
        try:
            return Batch() if last is None else _batch(last)
        except UnreadableError as error:
            message = f"The progress of import {self._name} cannot be read from topic {IMPORTS_TOPIC}: {error}"
            hint = (
                "If a newer version of Riverrun wrote it, use that version. Otherwise, check who writes to that topic."
            )
            raise RangeError(message, hint=hint) from error

    def _check(self, expected: Batch) -> None:
        found = self.last()
        if found != expected:
            message = (
                f"Import {self._name} is at batch {found.number} now, not {expected.number}: it also runs elsewhere"
            )
            raise TaskMigratedError(message)
