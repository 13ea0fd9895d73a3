"""Global tables hold no row that was deleted while their process was stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import RangeError
from riverrun.testing.driver import MockClock
from riverrun.worker.stream_thread import figures
from riverrun.worker.stream_thread.figures import GlobalTables
from tests.compacted_log import TP, Brokers, CompactedLog

RETENTION_MS = 100_000


@pytest.fixture
def log() -> CompactedLog:
    return CompactedLog(RETENTION_MS)


@pytest.fixture
def tables(log: CompactedLog, monkeypatch: pytest.MonkeyPatch) -> GlobalTables:
    """Tables that were filled from the log."""
    source = SimpleNamespace(source=SimpleNamespace(topics=[TP.topic]))
    brokers: Any = Brokers(log)
    connected = SimpleNamespace(admin=brokers, topology=SimpleNamespace(global_stores=[source]))
    monkeypatch.setattr(figures, "found_ids", lambda *_: {})
    monkeypatch.setattr(figures, "open_global_state", lambda *_arguments, **_named: SimpleNamespace())
    monkeypatch.setattr(figures, "_LOOK_SECONDS", 0.0)
    topics: Any = SimpleNamespace(connected=connected)
    found = GlobalTables(topics, MockClock(), lambda *_: None)
    found.fill()
    return found


def test_tables_of_a_process_that_was_stopped_for_too_long_are_filled_again(
    log: CompactedLog, tables: GlobalTables
) -> None:
    log.now_ms += RETENTION_MS
    with pytest.raises(RangeError, match="may hold rows that have been deleted") as found:
        tables.require_recent()
    assert found.value.hint == "Start the instance again: it fills them from the whole topics."


def test_tables_that_have_read_on_are_kept_however_long_they_run(log: CompactedLog, tables: GlobalTables) -> None:
    for _ in range(10):
        log.write(b"a", b"1")
        log.now_ms += RETENTION_MS // 4
        tables.require_recent()
        tables.look_if_due(lambda: {TP: log.end})


def test_tables_that_do_not_reach_the_ends_of_their_topics_become_too_old(
    log: CompactedLog, tables: GlobalTables
) -> None:
    log.write(b"a", b"1")
    for _ in range(3):
        tables.look_if_due(lambda: {TP: 0})
        log.now_ms += RETENTION_MS // 3
    with pytest.raises(RangeError):
        tables.require_recent()
