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
    """Reprocess a new version, judge it, and switch over; by hand."""
    with DAG(
        f"millrace_{app.name}_release",
        description=f"Releases of {app.name}",
        schedule=None,
        start_date=_EPOCH,
        catchup=False,
        max_active_runs=1,
        tags=["millrace", app.name],
        default_args=_RETRIES,
        params={
            "version": Param(next(iter(app.versions), ""), type="string", description="which is to go live"),
            "accept_warnings": Param(
                default=False, type="boolean", description="switch over in spite of the gate's warnings"
            ),
        },
    ) as dag:
        steps = [
            ReleaseOperator(
                task_id=step,
                config=str(config),
                app=app.name,
                step=step,
                to="{{ params['version'] }}",
                accept_warnings="{{ params['accept_warnings'] }}",
            )
            for step in ("start", "reprocess", "gate", "cut")
        ]
        for before, after in pairwise(steps):
            before >> after
    return dag
