"""When a task that drops much as late is worth a warning."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from riverrun.records import TaskId
from riverrun.worker.tasks.aligned_tasks import LateShare

TASK = TaskId(1, 0)


@dataclass
class Counting:
    dropped: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("late", "processed", "warns"), [(100, 2000, True), (99, 100, False), (100, 2001, False), (0, 5000, False)]
)
def test_a_large_share_of_late_records_is_worth_one_warning(
    late: int, processed: int, *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    task = Counting()
    watch = LateShare({TASK: task}, counts := {TASK: 0}, lambda: now[0])
    for stretch in (1, 2):
        task.dropped, counts[TASK] = {"late": late * stretch}, processed * stretch
        now[0] += 60
        watch.warn_if_due()
    said = [record for record in caplog.records if f"task 1_0 drops {late} records as late" in record.getMessage()]
    assert len(said) == warns
