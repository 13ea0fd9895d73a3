"""The records in front of topics, which an add-on reads from `archive.url`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

from riverrun.config.addons import loaded_part, prefix_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.kafka.admin import Admin, EarlierRecords
    from riverrun.records import OffsetRange, TopicPartition


@cache
def _archived(url: str) -> EarlierRecords:
    """Return the archive at a URL; all threads of a process share it."""
    opened = loaded_part("archives", prefix_of(url)) or loaded_part("archives", "")
    return cast("EarlierRecords", opened(url))


def with_archive(admin: Admin, url: str) -> Admin:
    """Return a client that reads archived records before those of brokers; the client itself without a URL."""
    return admin.behind(_archived(url)) if url else admin


def archived_ranges(url: str, admin: Admin, tps: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
    """Return the archived ranges that reach the starts of partitions' logs; none without a URL."""
    return dict(_archived(url).ranges(admin, admin.log_starts(tps))) if url else {}
