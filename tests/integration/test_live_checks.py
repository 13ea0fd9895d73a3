"""Checks of a live version: its outputs, stores, runs and workers, as a whole or since a point; and their history."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced
from riverrun.errors import RangeError
from riverrun.quality import (
    Checks,
    Expectations,
    ExpectColumnStatisticToBeNearLastRuns,
    ExpectTableRowCountToBeNearLastRuns,
)

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.app import App
    from tests.brokers import Broker


def spent(unique: str) -> Any:
    """Payments as a log, and their sums as a table out of a store."""

    def build(builder: StreamsBuilder) -> Topology:
        paid = builder.stream(f"{unique}.in", Consumed(STRING, LONG))
        paid.to(f"{unique}.log", Produced(STRING, LONG))
        sums = paid.group_by_key(Grouped(STRING, LONG)).reduce(
            lambda a, b: a + b, Materialized(STRING, LONG, name="sums")
        )
        sums.to_stream().to(f"{unique}.sums", Produced(STRING, LONG))
        return builder.build()

    return build


def demands(unique: str) -> Checks:
    most = gxe.ExpectColumnValuesToBeBetween(column="value", max_value=100, severity="warning")
    on_time = gxe.ExpectColumnValuesToBeBetween(column="_late_ms", max_value=1000, severity="warning")
    return Checks(
        {f"{unique}.log": [on_time], f"{unique}.sums": Expectations([most])},
        stores={"sums": [gxe.ExpectTableRowCountToEqual(value=2, severity="critical")]},
        runs=[gxe.ExpectColumnValuesToBeBetween(column="dropped_share", max_value=0.1, severity="critical")],
    )


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    broker.create(1, *(f"{unique}.{name}" for name in ("in", "log", "sums")))
    project = broker.project(directory=tmp_path, by="ann@desk")
    kinds = {f"{unique}.log": "log", f"{unique}.sums": "table"}
    app = project.app(unique, spent(unique), quality=lambda: demands(unique), data_docs="docs", outputs=kinds)
    pay(broker, app, ("ann", 5, 1_000), ("bob", 7, 5_000))
    return app


def pay(broker: Broker, app: App, *payments: tuple[str, int, int]) -> None:
    broker.write(f"{app.name}.in", [(key.encode(), LONG.serialize(value), at) for key, value, at in payments])
    app.catch_up()


def test_outputs_stores_and_runs_are_judged_and_what_was_found_is_kept(
    broker: Broker, app: App, tmp_path: Path
) -> None:
    first = app.checks.run().verdict
    assert (first.critical, first.warnings) == ((), ())
    assert first.outcomes["store.sums: expect_table_row_count_to_equal(value=2)"] == "passed"
    assert first.outcomes["runs: it has rows"] == "noted: it is empty"
    judged = [app.checks.is_judged()]
    pay(broker, app, ("ann", 200, 3_000))
    judged.append(app.checks.is_judged())
    both = app.checks.run().verdict
    assert [name.partition(":")[0] for name in both.warnings] == [f"{app.name}.log", f"{app.name}.sums"]
    pay(broker, app, ("cy", 1, 6_000))
    third = app.checks.run()
    assert third.verdict.critical == ("store.sums: expect_table_row_count_to_equal(value=2)",)
    assert [*judged, app.checks.is_judged()] == [True, False, False], "what was rejected has not passed"
    assert [each.result for each in app.checks.history()] == ["failed", "warnings", "passed"]
    latest = app.checks.history(1)[0]
    assert (latest.id, latest.by, latest.at, latest.version) == (third.id, "ann@desk", str(third.at), "v1")
    assert latest.pages.keys() == {f"{app.name}.log", f"{app.name}.sums", "store.sums"}
    site = tmp_path / "docs" / app.name
    assert all((site / page).is_file() for page in latest.pages.values())


def steady(log: str) -> Any:
    rows = ExpectTableRowCountToBeNearLastRuns(runs=2, within=0.5, severity="warning")
    mean = ExpectColumnStatisticToBeNearLastRuns(column="value", statistic="mean", runs=2, severity="warning")
    return {log: [rows, mean]}


def test_row_counts_and_statistics_are_compared_with_those_of_the_last_checks(broker: Broker, app: App) -> None:
    project = broker.project(directory=app.project.path.parent, by="ann@desk")
    name, log = app.name, f"{app.name}.log"
    app = project.app(name, spent(name), quality=lambda: steady(log), outputs={log: "log", f"{name}.sums": "table"})
    found = []
    for payments in ([], [], [("cy", 6, 6_000)], [("cy", 6, 6_000)] * 4, [("cy", 900, 6_000)]):
        pay(broker, app, *payments)
        warnings = app.checks.run().verdict.warnings
        found.append([each.partition("_to_be_near")[0].rpartition("expect_")[2] for each in warnings])
    assert found == [[], [], [], ["table_row_count"], ["table_row_count", "column_statistic"]]
    app.checks.run("last")
    counted = [each.statistics[log] for each in app.checks.history()]
    assert [each.rows for each in counted] == [0, 8, 7, 3, 2, 2]
    assert (counted[1].columns["value"].lowest, counted[1].columns["value"].highest) == (5, 900)
    assert [each.what for each in app.checks.history(2)] == ["check of new records", "check"]


def test_only_records_since_a_point_are_judged(broker: Broker, app: App) -> None:
    pay(broker, app, ("ann", 200, 3_000))
    both = [f"{app.name}.log", f"{app.name}.sums"]
    points = "last", "last", f"{app.name}.sums-0@2", "1970-01-01T00:00:04", f"{app.name}.sums-0@4"
    found = [[name.partition(":")[0] for name in app.checks.run(since).verdict.warnings] for since in points]
    assert found == [both, [], both, both, both[:1]]
    pay(broker, app, ("bob", 1, 9_000))
    assert app.checks.run("last").verdict.warnings == ()
    assert [each.since for each in app.checks.history()][-2:] == [app.checks.history()[-1].at, ""]
    with pytest.raises(RangeError, match=r"gone-0 is not a partition that .* publishes to"):
        app.checks.run("gone-0@1")
    with pytest.raises(RangeError, match="'perhaps' is not a time"):
        app.checks.run("perhaps")


@pytest.mark.broker
def test_drops_and_lateness_of_running_workers_are_judged_since_the_last_check(
    broker: Any, unique: str, tmp_path: Path
) -> None:
    broker.create(1, *(f"{unique}.{name}" for name in ("in", "log", "sums")))
    no_null = gxe.ExpectColumnValuesToBeBetween(column="null_key_or_value", max_value=0, severity="critical")
    on_time = gxe.ExpectColumnValuesToBeBetween(column="lateness_max_ms", max_value=1000, severity="warning")
    project = broker.project(directory=tmp_path)
    checks, token = Checks(workers=[no_null, on_time]), {"server.token": "open-sesame-said-ali"}
    app = project.app(unique, spent(unique), quality=lambda: checks, config=token)
    assert app.checks.run().verdict.warnings == ("workers: instances answer",), "there are none"

    with app.worker(server="127.0.0.1:0") as worker:

        def write(*payments: tuple[bytes | None, int]) -> None:
            expected = worker.summary().processed + len(payments)
            broker.write(f"{unique}.in", [(key, LONG.serialize(1), at) for key, at in payments])
            deadline = time.monotonic() + 120
            while worker.summary().processed < expected and time.monotonic() < deadline:
                time.sleep(0.05)

        def failing(since: str) -> list[str]:
            found = app.checks.run(since).verdict
            return [re.findall(r"column=(\w+)|$", name)[0] for name in found.critical + found.warnings]

        write((b"ann", 9_000))
        assert failing("last") == []
        write((None, 9_000), (b"bob", 5_000))
        assert failing("last") == ["null_key_or_value", "lateness_max_ms"]
        write((b"bob", 9_000))
        assert failing("last") == [], "of the records since then"
        assert failing("") == ["null_key_or_value", "lateness_max_ms"], "since the worker has taken the task over"
    noted = "workers: counted since"
    assert [noted in each.outcomes for each in app.checks.history()] == [False, False, False, True, False]
