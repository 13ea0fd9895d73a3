"""The time that a task has: its `execution_timeout`, and the `dagrun_timeout` of its run, also while it is deferred."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowTaskTimeout

from riverrun_airflow.sessions import now_ms

if TYPE_CHECKING:
    from airflow.sdk import Context

# Airflow applies `execution_timeout` to each part of a task between two waits, and to none of the waits.


def deadline_ms(context: Context) -> int | None:
    """Return the time at which a task has to end, ms since the epoch; None without a limit."""
    instance, run, dag = context.get("ti"), context.get("dag_run"), context.get("dag")
    limits = (
        (getattr(instance, "start_date", None), getattr(context.get("task"), "execution_timeout", None)),
        (getattr(run, "start_date", None), getattr(dag, "dagrun_timeout", None)),
    )
    ends = [int((begun + limit).timestamp() * 1000) for begun, limit in limits if begun and limit]
    return min(ends, default=None)


def time_left(context: Context) -> timedelta | None:
    """Return the time that a task has left; None without a limit.

    Raises:
        AirflowTaskTimeout: If it has none.
    """
    ends_ms = deadline_ms(context)
    if ends_ms is None:
        return None
    left = timedelta(milliseconds=ends_ms - now_ms())
    if left <= timedelta():
        raise AirflowTaskTimeout(
            "The time of the task is up (execution_timeout, or dagrun_timeout of its run). What is committed stays."
        )
    return left
