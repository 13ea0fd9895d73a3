"""The windowed count in Pathway, as its documentation writes it. Runs in an environment of its own."""

from __future__ import annotations

import os
import sys

import pathway as pw

MINUTE_MS = 60_000


class View(pw.Schema):  # type: ignore[misc] # Pathway asks for its own class
    """One record of the input."""

    id: int
    user: str
    page: str
    millis: int
    ok: bool


def main(servers: str, group: str, interval_ms: str, state: str) -> None:
    kafka = {"bootstrap.servers": servers}
    views = pw.io.kafka.read(
        {**kafka, "group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"},
        os.environ["BENCH_INPUT"],
        schema=View,
        format="json",
        with_metadata=True,
        autocommit_duration_ms=int(interval_ms),
        name="views",
    )
    timed = views.select(pw.this.user, at=pw.unwrap(pw.this._metadata["timestamp_millis"].as_int()))
    counts = timed.windowby(pw.this.at, window=pw.temporal.tumbling(duration=MINUTE_MS), instance=pw.this.user).reduce(
        user=pw.this._pw_instance, start=pw.this._pw_window_start, n=pw.reducers.count()
    )
    pw.io.kafka.write(counts, kafka, os.environ["BENCH_OUTPUT"], format="json", key=counts.user, name="counts")
    backend = pw.persistence.Backend.filesystem(state)
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(backend, snapshot_interval_ms=int(interval_ms)),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
