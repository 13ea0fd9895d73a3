"""Checks of what is published: nothing counts as judged that no check has passed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun.kafka.admin import Admin
from riverrun.testing import Cluster
from tests.unit.simulation.test_projects import Views, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.project.app import App


def without(*pages: str) -> object:
    """Return expectations that some pages are not in the table."""
    import great_expectations.expectations as gxe  # noqa: PLC0415 - takes seconds

    from riverrun.quality import Expectations  # noqa: PLC0415 - as above

    found = gxe.ExpectColumnValuesToNotBeInSet(column="_key", value_set=[*pages], severity="critical")
    return {"view-counts": Expectations(table=[found])}


def judging(cluster: Cluster, *pages: str) -> App:
    return cluster.project().app("views", build, quality=partial(without, *pages))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=1) as opened:
        views = Views(opened)
        views.write()
        views.app.run()
        yield opened


def test_a_check_of_later_records_does_not_judge_what_has_failed_before(cluster: Cluster) -> None:
    app = judging(cluster, "/1")
    failed = app.checks.run()
    assert failed.verdict.critical
    later = app.checks.run(str(failed.at))
    assert not later.verdict.critical
    assert not app.checks.is_judged()
    assert app.checks.run("last").verdict.critical, "what has failed is judged again"


def test_a_check_within_a_new_partition_does_not_judge_what_is_before_it(cluster: Cluster) -> None:
    app = judging(cluster, "/none")
    app.checks.run()
    Admin(cluster.kafka).add_partitions({"view-counts": 3})
    writer = cluster.kafka.producer({"linger.ms": 0})
    for _ in range(2):
        writer.produce("view-counts", key=b"/1", value=bytes(8), partition=2)
    writer.flush(10)
    assert not app.checks.run("view-counts-2@1").verdict.critical
    assert not app.checks.is_judged()


def test_what_has_passed_other_expectations_is_judged_again(cluster: Cluster) -> None:
    app = judging(cluster, "/none")
    app.checks.run()
    app.checks.run("last")
    assert app.checks.is_judged()
    assert not judging(cluster, "/1").checks.is_judged()
