"""Judges what outputs do not show: rows of state stores, and the number of records that bounded runs dropped."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.hosting.progress import counted_rows
from riverrun.processor.drops import DropReason
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import INFO, Verdict, judge
from riverrun.quality.suites import RUNS, STORE
from riverrun.releases.differences.rows import whole_key
from riverrun.releases.versions.build import build_topology
from riverrun.spark.planning.runs import DONE, RunLog
from riverrun.spark.store_frames.store_rows import read_rows
from riverrun.spark.store_frames.stores import works_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.quality.expectations import Checks
    from riverrun.quality.reports import Report
    from riverrun.spark.planning.runs import RunRecord

_OWN = ("key", "window_start", "window_end", "timestamp", "valid_from", "valid_to", "partition")
"""Columns of a store that are not part of its values; in the frame they begin with an underscore."""


def judge_insides(
    connected: ConnectedApplication,
    checks: Checks,
    directory: Path,
    spark: Callable[[], Any],
    report: Report,
    since_ms: int = 0,
) -> Verdict:
    """Judge the stores and the bounded runs of a version, as they are now.

    Args:
        connected: The version.
        checks: The expectations.
        directory: Where frames may be written; the directory is removed afterwards.
        spark: Returns a Spark session, for large frames.
        report: Where results go.
        since_ms: Only runs that began at or after this time count, ms since the epoch.

    Raises:
        InvalidStateStoreError: If a store cannot be read as a table.
        DeserializationError: If a row cannot be read.
        BrokerError: If brokers do not answer.
    """

    def judged(name: str, rows: Iterable[Mapping[str, Any]], expectations: Iterable[Any]) -> Verdict:
        shutil.rmtree(directory, ignore_errors=True)
        try:
            frame = write_frame(directory, counted_rows(f"judge {name}", rows))
            keys = [column for column in ("_key", "_run") if column in frame.columns]
            return judge(name, frame, list(expectations), spark, keys=keys, if_empty=INFO, report=report)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    found = Verdict({})
    for store, expectations in checks.stores.items():
        found += judged(f"{STORE}{store}", store_rows(connected, store), expectations)
    if checks.runs:
        application = connected.application
        runs = RunLog(connected.admin).runs(application.config.name)
        own = [run for run in runs if run.version == application.version and run.started_ms >= since_ms]
        found += judged(RUNS, run_rows(own), checks.runs)
    return found


def store_rows(connected: ConnectedApplication, store: str) -> Iterator[dict[str, Any]]:
    """Return the committed rows of a store, with the fields of its values as columns.

    Raises:
        InvalidStateStoreError: If it cannot be read as a table.
        DeserializationError: If a row cannot be read.
        BrokerError: If brokers do not answer.
    """
    for work in works_of(connected, store):
        for batch in read_rows(work, build_topology):
            for row in batch.to_pylist():
                yield _with_fields(row)


def run_rows(runs: Iterable[RunRecord]) -> Iterator[dict[str, Any]]:
    """Return a row for each completed run: records read, written and dropped, in total and by reason.

    >>> from riverrun.spark.planning.runs import RunRecord
    >>> run = RunRecord("7-a", "clicks", "v1", "ann", 0, "", state="done", ended_ms=0, records_in=4, dropped={"late": 1})
    >>> row = next(run_rows([run]))
    >>> row["dropped"], row["dropped_share"], row["late"], row["null_key"]
    (1, 0.25, 1, 0)
    """
    for run in runs:
        if run.state == DONE:
            dropped = sum(run.dropped.values())
            reasons = {reason.value.replace("-", "_"): run.dropped.get(reason.value, 0) for reason in DropReason}
            yield {
                "_run": run.id,
                "_time": datetime.fromtimestamp((run.ended_ms or 0) / 1000, UTC),
                "records_in": run.records_in,
                "records_out": run.records_out,
                "dropped": dropped,
                "dropped_share": dropped / max(1, run.records_in),
                **reasons,
            }


def _with_fields(row: dict[str, Any]) -> dict[str, Any]:
    key, value = row["key"], _parsed(row.pop("value", None))
    own = {("_time" if name == "timestamp" else f"_{name}"): row[name] for name in _OWN if name in row}
    fields = value if isinstance(value, dict) else {"value": value}
    if isinstance(key, dict):
        own["_key"] = whole_key(key, key)
        own |= {(f"_key_{name}" if name in fields or name in own else name): part for name, part in key.items()}
    return own | fields


def _parsed(value: Any) -> Any:
    """Return JSON text as its value; other values unchanged."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
