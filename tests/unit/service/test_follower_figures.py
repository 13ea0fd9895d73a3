"""Followers serve their figures to Prometheus, and to nobody without the token."""

from __future__ import annotations

import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from riverrun.config.address import ServerAddress
from riverrun.errors import ConfigError
from riverrun.hosting.process import SystemClock
from riverrun.records import TopicPartition
from riverrun.service.follower_metrics import FollowerMetrics, serving
from riverrun.transfers.follower import FollowReport
from tests.brokers import free_port

HERE = ServerAddress("127.0.0.1", 0)


def test_figures_are_those_of_the_last_report() -> None:
    figures = FollowerMetrics("archive", "shop")
    lags = {TopicPartition("orders", 0): 7, TopicPartition("orders", 3): 0}
    with serving(figures, HERE, "") as port:
        assert "process_cpu_seconds_total" in scraped(port)
        assert "riverrun_follower_records_total" not in scraped(port)
        figures.take(FollowReport(100, 2, 10.0, 7, {}, lags, since_commit=5.0))
        figures.take(FollowReport(120, 3, 2.0, 7, {}, lags, since_commit=1.0))
        found = scraped(port)
    assert found["riverrun_follower_records_total"] == {("archive", "shop"): 120}
    assert found["riverrun_follower_commits_total"] == {("archive", "shop"): 3}
    assert found["riverrun_follower_lag_records"] == {
        ("archive", "shop", "0", "orders"): 7,
        ("archive", "shop", "3", "orders"): 0,
    }
    (committed,) = found["riverrun_follower_last_commit_timestamp_seconds"].values()
    assert committed <= SystemClock().now_ms() / 1000 - 1.0


def test_callers_need_the_token_and_find_nothing_else() -> None:
    with serving(FollowerMetrics("export", "totals"), HERE, "secret") as port:
        url = f"http://127.0.0.1:{port}"
        known = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/metrics", headers={"Authorization": "Bearer secrets"}).status_code == 401
        assert httpx.get(f"{url}/metrics", headers=known).status_code == 200
        assert httpx.get(f"{url}/", headers=known).status_code == 404
        assert httpx.post(f"{url}/metrics", headers=known).status_code == 404


def test_an_address_in_use_is_told_and_one_is_free_again_afterwards() -> None:
    figures = FollowerMetrics("export", "totals")
    with socket.socket() as taken:
        address = ServerAddress("127.0.0.1", free_port())  # clients of other processes do not get it meanwhile
        taken.bind(address)
        taken.listen()
        with pytest.raises(ConfigError, match=rf"Metrics cannot be served at {address}: Address already in use"):
            serving(figures, address, "").__enter__()
    for _ in range(2):
        with serving(figures, address, "") as port:
            assert scraped(port)


def scraped(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """By metric, the values by the values of labels, in order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(httpx.get(f"http://127.0.0.1:{port}/metrics").text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found
