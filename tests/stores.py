"""Stands in for a task in tests of single stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from riverrun.records import Headers, RecordMetadata
    from riverrun.state.api import ChangelogRecord

CHANGELOG = TopicPartition("app-store-changelog", 0)


@dataclass
class Context:
    """The record that is being processed."""

    topic: str | None = None
    partition: int = 0
    offset: int = 0
    timestamp: int = 7
    stream_time: int = -1
    headers: Headers = ()
    record_metadata: RecordMetadata | None = None
    keeps_sources: bool = False
    kept_bytes: int = 10 * 1024 * 1024


def commit(store: Any, backend: Any, position: int = 0) -> list[ChangelogRecord]:
    """Flush a store to its backend, and return the changelog's records; `position` is the changelog's."""
    store.flush()
    records = list(store.changelog())
    backend.write(store.pending(), {CHANGELOG: position})
    store.committed()
    return records
