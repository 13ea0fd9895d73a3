"""Metrics of a follower for Prometheus, and their server: an import, export or archive has no other HTTP."""

from __future__ import annotations

import hmac
import socket
import threading
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from riverrun.errors import ConfigError
from riverrun.hosting.process import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun.config.address import ServerAddress
    from riverrun.transfers.follower import FollowReport

_FOLLOWER = "riverrun_follower_"


class FollowerMetrics(Collector):
    """The metrics of a process that follows topics into an export or an archive, or a source into a topic.

    Args:
        kind: `export`, `import` or `archive`.
    """

    def __init__(self, kind: str, name: str) -> None:
        self._labels = [kind, name]
        self._report: FollowReport | None = None
        self._committed_at: float | None = None

    def take(self, report: FollowReport) -> None:
        self._report = report
        if report.since_commit is not None:
            self._committed_at = SystemClock().now_ms() / 1000 - report.since_commit

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; before the first report they have no values."""
        names, report = ["kind", "name"], self._report
        records = CounterMetricFamily(f"{_FOLLOWER}records", "Records committed to the target.", labels=names)
        skipped = CounterMetricFamily(
            f"{_FOLLOWER}skipped_records", "Unreadable records that were skipped.", labels=names
        )
        commits = CounterMetricFamily(f"{_FOLLOWER}commits", "Commits to the target.", labels=names)
        last = GaugeMetricFamily(
            f"{_FOLLOWER}last_commit_timestamp_seconds", "Time of the last commit, s since the epoch.", labels=names
        )
        lag = GaugeMetricFamily(
            f"{_FOLLOWER}lag_records",
            "Offsets of a partition that are not in the target yet. Only partitions that the process reads have values.",
            labels=[*names, "topic", "partition"],
        )
        waiting = GaugeMetricFamily(
            f"{_FOLLOWER}waiting",
            "Rows of a table, or files, that are not in the topic of an import yet. Only imports have values.",
            labels=names,
        )
        if report is not None and report.place:
            waiting.add_metric(self._labels, report.lag)
        if report is not None:
            records.add_metric(self._labels, report.records)
            skipped.add_metric(self._labels, report.skipped)
            commits.add_metric(self._labels, report.commits)
            for tp, offsets in report.lags.items():
                lag.add_metric([*self._labels, tp.topic, str(tp.partition)], offsets)
        if self._committed_at is not None:
            last.add_metric(self._labels, self._committed_at)
        yield from (records, skipped, commits, last, lag, waiting)


@contextmanager
def serving(figures: FollowerMetrics, address: ServerAddress, token: str) -> Iterator[int]:
    """Serve metrics of a follower and of this process at `/metrics`; yields the port. Without a token, all may read them."""
    registry = CollectorRegistry()
    registry.register(figures)
    ProcessCollector(registry=registry)
    app = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Any) -> Any:
        given = environ.get("HTTP_AUTHORIZATION", "").encode()
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"A token is needed\n"]
        if environ["REQUEST_METHOD"] != "GET" or environ["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Metrics are at /metrics\n"]
        return app(environ, start)

    # wsgiref's server answers one request at a time and opens IPv4 sockets only.
    kind: Any = _ServerOfSix if ":" in address.host else _Server
    try:
        server = make_server(address.host, address.port, answer, kind, _QuietHandler)
    except OSError as error:
        message = f"Metrics cannot be served at {address}: {error.strerror or error}"
        raise ConfigError(message, hint="Choose another address in metrics_server.") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerOfSix(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    """Answers without a log line for each request."""

    # Else a caller that connects and says nothing would keep its thread for ever.
    timeout = 10

    def log_message(self, *_: object) -> None:
        """Say nothing."""
