"""What the driver sends to executors and gets back: plain values, nothing open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.config import AppConfig
    from pipeline.records import OffsetRange, TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a run have in common. Executors build the topology anew, and refuse if it is another one.

    Args:
        config: The application.
        version: Which version.
        kafka: Client properties.
        state_directory: Where executors keep local state.
        fingerprint: Of the driver's topology.
        published: Where public outputs go instead.
        partitions: Partition counts of the external source topics.
        global_ends: Up to where global tables are read: the same for all tasks.
    """

    config: AppConfig
    version: str
    kafka: Mapping[str, str] = field(repr=False)
    state_directory: Path
    fingerprint: str
    published: Mapping[str, str]
    partitions: Mapping[str, int]
    global_ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class TaskWork:
    """One task's part of one slice: all its inputs, and what to process of each."""

    job: Job
    task_id: TaskId
    ranges: Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task did.

    Args:
        task_id: The task, as text.
        processed: Records processed; 0 if an earlier attempt had done it all.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
        error: What stopped it for good, as `describe_error` writes it; None if nothing did.
    """

    task_id: str
    processed: int
    restored: int
    dropped: dict[str, int]
    error: str | None = None
