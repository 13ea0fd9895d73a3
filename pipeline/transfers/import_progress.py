"""How far an import is, in a compacted topic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from pipeline.errors import RangeError, TaskMigratedError
from pipeline.hosting.control.control_topic import ControlTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.kafka.admin import Admin
    from pipeline.transfers.import_spec import ImportSpec

IMPORTS_TOPIC = "millrace-imports"


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions that tell the rows of a batch from others, and which of its parts each belongs to.

    Args:
        source: As `ImportSpec` has it, like all of them.
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
        """Those of an import."""
        return cls(spec.source, spec.format, spec.schema, tuple(spec.key), spec.value, spec.incremental)

    def differences(self, other: Terms) -> str:
        """Return the differences between here and there, as text.

        >>> Terms("a", key=("id",)).differences(Terms("b", key=("id",)))
        "source 'a', not 'b'"
        """
        there = asdict(other)
        pairs = ((name, mine, there[name]) for name, mine in asdict(self).items())
        return "; ".join(f"{name} {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs)


@dataclass(frozen=True, slots=True)
class Batch:
    """The work that an import does at a time.

    Args:
        number: Counts the batches of the import.
        partitions: Number of partitions of the topic when it was planned.
        parts: Number of its parts.
        files: The files it consists of.
        above: It has the rows whose column is above this value, as text; None for all.
        upto: And not above this one.
        is_done: Whether all of it has been written.
        terms: How its rows are chosen and cut into parts.
        topic_id: What the brokers call the topic: one that is created anew has another id, and none of the records.
    """

    number: int = 0
    partitions: int = 0
    parts: int = 0
    files: tuple[str, ...] = ()
    above: str | None = None
    upto: str | None = None
    is_done: bool = True
    terms: Terms = Terms()
    topic_id: str = ""


class Progress:
    """How far an import is: its last batch, the parts of it that are done, and files that are done.

    Args:
        admin: Asks the brokers.
        name: The import's id.
    """

    def __init__(self, admin: Admin, name: str) -> None:
        """All calls raise `BrokerError` if brokers do not answer."""
        self._topic = ControlTopic(admin, IMPORTS_TOPIC)
        self._name = name

    def last(self) -> Batch:
        """The last batch; number 0 if there was none."""
        return self._last(self._topic.read())

    def files(self) -> set[str]:
        """The files that have been imported."""
        prefix = f"{self._name}/file/"
        return {name.removeprefix(prefix) for name in self._topic.read() if name.startswith(prefix)}

    def has_parts(self, batch: Batch) -> bool:
        """Whether a part of a batch has been written."""
        found = self._topic.read()
        return any(self.part_name(batch, part) in found for part in range(batch.parts))

    def is_written(self, batch: Batch, part: int) -> bool:
        """Whether a part of the last batch has been written.

        Raises:
            RangeError: If it is not the last batch any more.
        """
        found = self._topic.read()
        if self._last(found) != batch:
            message = f"Import {self._name} has gone on without batch {batch.number}: it runs elsewhere as well"
            raise RangeError(message)
        return self.part_name(batch, part) in found

    def part_name(self, batch: Batch, part: int) -> str:
        """Return the name that a part's note is kept under."""
        return f"{self._name}/part/{batch.number}/{part}"

    def begin(self, batch: Batch, last: Batch) -> None:
        """Note what is going to be done.

        Args:
            batch: That.
            last: The batch before, or the one that it replaces, of which nothing has been written.

        Raises:
            TaskMigratedError: If there is another one by now.
        """
        self._topic.write({self._name: msgspec.json.encode(asdict(batch))}, lambda: self._check(last))

    def finish(self, batch: Batch) -> None:
        """Note that a batch is done, and forget its parts.

        Raises:
            TaskMigratedError: If there is another one by now.
        """
        values: dict[str, bytes | None] = {self._name: msgspec.json.encode(asdict(replace(batch, is_done=True)))}
        values |= {f"{self._name}/file/{file}": b"{}" for file in batch.files}
        values |= dict.fromkeys(self.part_name(batch, part) for part in range(batch.parts))
        self._topic.write(values, lambda: self._check(batch))

    def _last(self, found: Mapping[str, bytes]) -> Batch:
        last = found.get(self._name)
        return Batch() if last is None else msgspec.json.decode(last, type=Batch)

    def _check(self, expected: Batch) -> None:
        found = self.last()
        if found != expected:
            message = (
                f"Import {self._name} is at batch {found.number} now, not {expected.number}: it runs elsewhere as well"
            )
            raise TaskMigratedError(message)
