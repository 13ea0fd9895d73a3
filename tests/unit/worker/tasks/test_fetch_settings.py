"""Fetches of workers: answered with some records at a time where nobody sees results before a commit."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_page_of_configuration_has_what_brokers_wait_for() -> None:
    page = Path(__file__).parents[4].joinpath("docs", "configuration.md").read_text()
    found = re.search(
        r"`fetch.min.bytes` (\d+) and a `fetch.wait.max.ms` of a (\w+) of that interval, at most (\d+)", page
    )
    assert found is not None
    parts = {"half": 2, "third": 3, "quarter": 4, "fifth": 5, "tenth": 10}
    for interval_ms in (100, 160, 30_000):
        wait_ms = min(interval_ms // parts[found[2]], int(found[3]))
        settings = fetch_settings(StreamsConfig(commit_interval_ms=interval_ms))
        assert settings == {"fetch.min.bytes": found[1], "fetch.wait.max.ms": str(wait_ms)}
