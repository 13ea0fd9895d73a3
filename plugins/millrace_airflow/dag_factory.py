"""DAGs out of `streams.toml`: bounded runs on a schedule, and releases by hand. Parsing loads no engine."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from millrace_airflow.operators import BoundedRunOperator, ReleaseOperator
from pipeline.config import ProjectConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.config import AppConfig

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}


def dags(config: Path) -> dict[str, DAG]:
    """All DAGs of a project, by id.

    Args:
        config: Path of `streams.toml`.

    Raises:
        ConfigError: If the file cannot be used; Airflow shows it as an import error.
    """
    project = ProjectConfig.load(config, os.environ)
    made = []
    for app in project.apps.values():
        if app.schedule is not None:
            made.append(bounded_run(config, app))
            made.append(release(config, app))
            made.append(approved_cut(config, app))
    return {dag.dag_id: dag for dag in made}


def bounded_run(config: Path, app: AppConfig) -> DAG:
    """From where the application stands to the end of the topics, on its schedule; another range by hand."""
    with DAG(
        f"millrace_{app.name}_run",
        description=f"Bounded runs of {app.name}",
        schedule=app.schedule,
        start_date=_EPOCH,
        catchup=False,
        max_active_runs=1,
        tags=["millrace", app.name],
        default_args=_RETRIES,
        params={
            "from": Param("committed", type="string", description="committed, earliest, a vector or a time"),
            "to": Param("latest", type="string", description="latest, a vector or a time"),
        },
    ) as dag:
        BoundedRunOperator(
            task_id="run", config=str(config), app=app.name, start="{{ params['from'] }}", end="{{ params['to'] }}"
        )
    return dag


def release(config: Path, app: AppConfig) -> DAG:
    """Reprocess a new version, judge it, and switch over if the gate passes; by hand."""
    with _by_hand(
        f"millrace_{app.name}_release",
        app,
        "Releases",
        {"version": Param(next(iter(app.versions), ""), type="string", description="which is to go live")},
    ) as dag:
        _chained(config, app, ("start", "reprocess", "gate", "cut"), to="{{ params['version'] }}")
    return dag


def approved_cut(config: Path, app: AppConfig) -> DAG:
    """Approve the warnings of a gate, and switch over; by hand."""
    with _by_hand(
        f"millrace_{app.name}_cut",
        app,
        "Approved cuts",
        {"verdict": Param("", type="string", description="id of the verdict whose warnings are approved")},
    ) as dag:
        _chained(config, app, ("approve", "cut"), verdict="{{ params['verdict'] }}")
    return dag


def _by_hand(dag_id: str, app: AppConfig, what: str, params: dict[str, Param]) -> DAG:
    return DAG(
        dag_id,
        description=f"{what} of {app.name}",
        schedule=None,
        start_date=_EPOCH,
        catchup=False,
        max_active_runs=1,
        tags=["millrace", app.name],
        default_args=_RETRIES,
        params=params,
    )


def _chained(config: Path, app: AppConfig, steps: Sequence[str], **options: str) -> None:
    tasks = [ReleaseOperator(task_id=step, config=str(config), app=app.name, step=step, **options) for step in steps]
    for before, after in pairwise(tasks):
        before >> after
