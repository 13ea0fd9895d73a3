"""Batches of exports that replace rows by key are not continued where deletions may be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from riverrun.errors import RangeError
from riverrun.transfers.batches import ExportBatch
from riverrun.transfers.exports import _next_batch
from riverrun.transfers.specs import ExportSpec
from tests.compacted_log import TP, Brokers, CompactedLog

RETENTION_MS = 100_000
SPEC = ExportSpec(TP.topic, "rows", "jdbc", key=("k",))


@pytest.fixture
def brokers() -> Any:
    """Brokers with a row, which the first batch has."""
    found: Any = Brokers(CompactedLog(RETENTION_MS))
    found.partitions = lambda topics: dict.fromkeys(topics, 1)
    found.log.write(b"a", b"1")
    return found


def _deleted(log: CompactedLog, passed_ms: int) -> None:
    log.write(b"a", None)
    log.write(b"b", b"1")
    log.clean_up(passed_ms)


def _done(spec: ExportSpec, last: ExportBatch, brokers: Any) -> ExportBatch:
    batch = _next_batch(spec, last, brokers)
    assert batch is not None
    return replace(batch, is_done=True)


def test_a_table_is_not_continued_after_too_long_a_pause(brokers: Any) -> None:
    last = _done(SPEC, ExportBatch(), brokers)
    _deleted(brokers.log, 2 * RETENTION_MS)
    with pytest.raises(
        RangeError, match="The table rows of export app-table-changelog may hold rows that have been deleted"
    ):
        _next_batch(SPEC, last, brokers)


def test_a_table_is_continued_in_time(brokers: Any) -> None:
    last = _done(SPEC, ExportBatch(), brokers)
    for _ in range(5):
        _deleted(brokers.log, RETENTION_MS // 2)
        last = _done(SPEC, last, brokers)
    assert last.number == 6


def test_rows_that_are_only_added_are_continued(brokers: Any) -> None:
    spec = replace(SPEC, key=())
    last = _done(spec, ExportBatch(), brokers)
    _deleted(brokers.log, 2 * RETENTION_MS)
    assert _done(spec, last, brokers).number == 2
