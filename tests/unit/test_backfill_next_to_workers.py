"""A backfill up to now, next to workers of the application: they process what is left of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.project import backfill
from riverrun.project.backfill import Backfill
from riverrun.records import OffsetRange, TopicPartition
from riverrun.releases.scope import scope_of
from riverrun.spark.ranges import RunRange

SCOPE = scope_of("2026-01-01", "2026-01-02")


@dataclass
class Rests:
    """The offsets left at each poll, and the members of the group; the last of both stay."""

    sizes: list[int]
    members: list[int]
    ran: list[int] = field(default_factory=list)

    def __call__(self) -> Any:
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        members = self.members.pop(0) if len(self.members) > 1 else self.members[0]
        return SimpleNamespace(
            range=RunRange({TopicPartition("in", 0): OffsetRange(0, size)}),
            application=SimpleNamespace(id="app-v1"),
            admin=SimpleNamespace(group=lambda _name: SimpleNamespace(members=("w",) * members)),
            run=lambda: self.ran.append(size),
        )


@pytest.mark.parametrize(
    ("sizes", "members", "left"),
    [
        ([9, 5, 2, 0], [1], 0),
        ([9, 9, 9], [1, 1, 0], 9),
        ([9, 4], [1, 0], 4),
        ([9], [0], 9),
        ([0], [1], 0),
        ([9, 9, 9, 3, 0], [2], 0),
    ],
)
def test_what_workers_process_is_awaited_and_a_run_does_the_rest(
    sizes: list[int], members: list[int], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "_POLL_SECONDS", 0)
    assert waited(Rests(sizes, members), timeout_ms=300_000) == left


@pytest.mark.parametrize("sizes", [[9], [9, 8]])
def test_workers_that_process_nothing_are_not_awaited_for_ever(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "_POLL_SECONDS", 0)
    assert waited(Rests(sizes, [1]), timeout_ms=50) == sizes[-1]


def waited(rests: Rests, timeout_ms: int) -> int:
    config = SimpleNamespace(streams=SimpleNamespace(task_timeout_ms=timeout_ms))
    chosen: Any = SimpleNamespace(name="app", config=config)
    nothing: Any = None
    return Backfill(chosen, nothing, SCOPE, rests)._unprocessed().range.size
