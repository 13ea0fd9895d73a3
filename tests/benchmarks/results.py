"""Results of measurements, kept in files: one per group of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class Result(msgspec.Struct, frozen=True):
    """All rounds of one row under one guarantee.

    Args:
        row: The row's name.
        guarantee: Which.
        machine: What it was measured on.
        records: How many the input had.
        runs: Figures of each run, by side.
        absent: Why sides did not take part, by side.
    """

    row: str
    guarantee: str
    machine: str
    records: int
    runs: dict[str, list[dict[str, float]]]
    absent: dict[str, str] = {}


def keep(directory: Path, group: str, result: Result) -> None:
    """Put a result in the place of the one there is of the same row and guarantee."""
    directory.mkdir(parents=True, exist_ok=True)
    others = [
        old for old in kept(directory).get(group, ()) if (old.row, old.guarantee) != (result.row, result.guarantee)
    ]
    text = msgspec.json.format(msgspec.json.encode([*others, result]), indent=1)
    (directory / f"{group}.json").write_bytes(text + b"\n")


def kept(directory: Path) -> dict[str, list[Result]]:
    """All there are, by group."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=list[Result])
        for path in sorted(directory.glob("*.json"))
    }
