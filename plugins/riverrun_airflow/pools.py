"""One pool of one slot per application: its runs, backfills and releases take turns.

Tasks whose pool does not exist never start, and only Airflow's servers may create one. The scheduler creates it here, when
it starts a run of a DAG. So applications that are declared while the scheduler is up get their pools, too.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from airflow.models import DagRun
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

_PREFIX = "riverrun_"


def pool_of(app: str) -> str:
    """Return the name of an application's pool."""
    return f"{_PREFIX}{app}"


@hookimpl
def on_dag_run_running(dag_run: DagRun) -> None:
    """Create the pools that tasks of a run need, with one slot each. Existing pools stay as they are."""
    from sqlalchemy.orm import object_session

    # The scheduler's own transaction: the pools exist once the run has started, and not if that fails.
    session = object_session(dag_run)
    if session is None:
        return
    for name in _missing(session, dag_run):
        _create(session, name)
        log.info("The pool %s was created, with one slot", name)


def _missing(session: Session, dag_run: DagRun) -> list[str]:
    from airflow.models import Pool, TaskInstance
    from sqlalchemy import select

    tasks = TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    ours = TaskInstance.pool.startswith(_PREFIX, autoescape=True)
    wanted = set(session.scalars(select(TaskInstance.pool).where(*tasks, ours).distinct()))
    known = set(session.scalars(select(Pool.pool).where(Pool.pool.in_(wanted)))) if wanted else set()
    return sorted(wanted - known)


def _create(session: Session, name: str) -> None:
    from airflow.models import Pool

    said = "One run of a Riverrun application at a time"
    # Another scheduler may create the pool at the same time. An error here would break the scheduler's transaction, which
    # allows no savepoint: so the database has to ignore a second one.
    insert = _insert_unless_there(session.get_bind().dialect.name, Pool)
    # `include_deferred`: a task whose driver computes is deferred, and must keep its slot.
    session.execute(insert.values(pool=name, slots=1, description=said, include_deferred=True))


def _insert_unless_there(dialect: str, table: Any) -> Any:
    if dialect == "mysql":
        from sqlalchemy import insert

        return insert(table).prefix_with("IGNORE")
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table).on_conflict_do_nothing()
