"""Batches of imports and exports, as the topics of their progress store them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from riverrun.decoders import (
    Natural,  # noqa: TC001 - msgspec reads the annotations
    Small,  # noqa: TC001 - as above
    Word,  # noqa: TC001 - msgspec reads the annotations
)
from riverrun.errors import RangeError
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import OffsetRange, TopicPartition
    from riverrun.transfers.specs import ImportSpec

WRITTEN_BY_OTHERS = (
    "If a newer version of Riverrun wrote it, use that version. Otherwise, check who writes to that topic."
)


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One range of offsets, as the topic of exports stores it.

    Args:
        number: Number of the batch, part of the directory's name.
        range: The range, as `RunRange` writes it.
        is_done: Whether it has been written.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and its offsets mean other records.
        target: The directory or table (`ExportSpec.place`).
        whole: Time at which the batches up to this one had all of the topic, as `riverrun.records.Whole` writes it.
        attempt: Id of the last attempt at it, which the names of its files have.
        partition_by: The levels of its directories.
    """

    number: Natural = 0
    range: str = ""
    is_done: bool = True
    topic_id: Word = ""
    target: str = ""
    whole: str = ""
    attempt: Word = ""
    partition_by: tuple[str, ...] = ()

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return RunRange.parse(self.range).ranges


@dataclass(frozen=True, slots=True)
class Terms:
    """The fields of an `ImportSpec` that select the rows of a batch and assign them to parts."""

    source: str = ""
    format: str = ""
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    incremental: str | None = None

    @classmethod
    def of(cls, spec: ImportSpec) -> Terms:
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
    """One batch of an import, as the topic of imports stores it.

    Args:
        number: Number of the batch, from 1; 0 before the first one.
        partitions: Number of the topic's partitions at the time of planning.
        parts: Number of its parts, of which each is one transaction.
        files: Its files, as Spark names them.
        above: Lower bound of the incremental column, exclusive, as text; None for none.
        upto: Upper bound of the incremental column, inclusive, as text; None without such a column.
        is_done: Whether it is written completely.
        terms: Select its rows, and assign them to parts.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and none of the records.
        after: The key of the last row with the upper bound, as JSON, if rows are ordered by two columns.
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
    after: str | None = None


def unreadable(topic: str, transfer: str, error: Exception) -> RangeError:
    """Make the error about the progress of an import or export, which a topic has, that cannot be decoded."""
    message = f"The progress of {transfer} cannot be read from topic {topic}: {error}"
    return RangeError(message, hint=WRITTEN_BY_OTHERS)
