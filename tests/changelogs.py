"""Changelog records as stores are given them, made of single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.records import Headers, RawRecord
    from riverrun.state.api import ChangelogRecord


class Batch:
    """A `ChangelogBatch`; records without keys are left out."""

    def __init__(self, records: Iterable[RawRecord | ChangelogRecord]) -> None:
        self._records = [(r.key, r.value, r.timestamp, r.headers) for r in records if r.key is not None]

    def keys(self) -> list[bytes]:
        return [key for key, _, _, _ in self._records]

    def values(self) -> list[bytes | None]:
        return [value for _, value, _, _ in self._records]

    def timestamps(self) -> list[int]:
        return [timestamp for _, _, timestamp, _ in self._records]

    def headers(self) -> list[Headers]:
        return [headers for _, _, _, headers in self._records]
