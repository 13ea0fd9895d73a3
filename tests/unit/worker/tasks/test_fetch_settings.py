"""Fetches of workers: answered with some records at a time where nobody sees results before a commit."""

from __future__ import annotations

import pytest

from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2, StreamsConfig
from riverrun.worker.tasks.fetching import fetch_settings


@pytest.mark.parametrize(
    ("guarantee", "commit_interval_ms", "wait_ms"),
    [
        (EXACTLY_ONCE_V2, 100, "25"),
        (EXACTLY_ONCE_V2, 160, "40"),
        (EXACTLY_ONCE_V2, 30_000, "50"),
        (EXACTLY_ONCE_V2, 99, None),
        (EXACTLY_ONCE_V2, 0, None),
        (AT_LEAST_ONCE, 100, None),
    ],
)
def test_brokers_wait_for_more_records_a_quarter_of_the_time_to_a_commit(
    guarantee: str, commit_interval_ms: int, wait_ms: str | None
) -> None:
    found = fetch_settings(StreamsConfig(processing_guarantee=guarantee, commit_interval_ms=commit_interval_ms))
    assert found.get("fetch.wait.max.ms") == wait_ms
    assert ("fetch.min.bytes" in found) == (wait_ms is not None)
