"""Lists rows that differ between the live version's tables and a candidate's, with old and new values, for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from riverrun.hosting.control.publication import staging_name
from riverrun.releases.differences.differ import Differ
from riverrun.releases.differences.rows import difference_rows
from riverrun.releases.versions.outputs import tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A row of a table that differs between the two versions.

    Args:
        topic: The public topic.
        change: `changed`, `new` or `gone`.
        key: The columns that identify the row.
        old: The live version's value, by field; the field is `""` if the value has none; empty if there is no such row.
        new: The candidate's value, likewise.
    """

    topic: str
    change: str
    key: Mapping[str, Any] = field(default_factory=dict)
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Describe it on one line."""
        key = " ".join(str(each) for name, each in self.key.items() if not (name == "window_end" and each is None))
        return f"{self.topic} {key} is {self.change}: {_text(self.old)} -> {_text(self.new)}"


def different_rows(live: ConnectedApplication, candidate: ConnectedApplication, limit: int) -> list[DifferentRow]:
    """Return rows that differ in what both versions have written so far, sorted by topic, partition and key.

    Args:
        live: The live version.
        candidate: The candidate.
        limit: Maximum number of rows.

    Raises:
        DeserializationError: If a row of the candidate cannot be read.
        BrokerError: If brokers do not answer.
    """
    return list(islice(_all(live, candidate), limit))


def _all(live: ConnectedApplication, candidate: ConnectedApplication) -> Iterator[DifferentRow]:
    for topic in tables(candidate.application):
        new = candidate.topology.sink_of(topic)
        if new is None:
            continue
        old = live.topology.sink_of(topic) or new
        staging = staging_name(candidate.id, topic)
        with Differ.of(candidate, topic) as differ:
            differ.advance(*differ.stable_ends())
            for row in difference_rows(differ.differences(), old, new, staging, lambda: None):
                yield row_of(topic, row)


def row_of(topic: str, row: Mapping[str, Any]) -> DifferentRow:
    """Return a row of a difference's frame, with fields by version."""
    key = {name: row[name] for name in ("key", "window_start", "window_end") if name in row}
    change = row["change"]
    old, new = ({} if change == missing else _fields(row, side) for side, missing in (("old", "new"), ("new", "gone")))
    return DifferentRow(topic, change, key, old, new)


def _fields(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    prefix = f"{side}_"
    alone = {"": row[side]} if side in row else {}
    return alone | {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _text(fields: Mapping[str, Any]) -> str:
    if not fields:
        return "nothing"
    if fields.keys() == {""}:
        return str(fields[""])
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))
