"""One pool of one slot per application: whatever computes for it waits for its turn, backfills and releases as well.

Tasks whose pool does not exist are never started, and only servers of Airflow may create one. The scheduler does it here, when
tasks wait for one: applications that are declared while it runs are served, too.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

_PREFIX = "millrace_"
_SCHEDULER = "SchedulerJob"
_LOOK_SECONDS = 5.0


def pool_of(app: str) -> str:
    """Return the name of an application's pool."""
    return f"{_PREFIX}{app}"


def create_missing(session: Session) -> list[str]:
    """Create the pools that scheduled tasks wait for, with one slot each; those that exist stay as they are.

    Args:
        session: A session of Airflow's database; it is committed.

    Returns:
        The names of those that were created.
    """
    from airflow.models import Pool, TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    waiting = (
        TaskInstance.state == TaskInstanceState.SCHEDULED,
        TaskInstance.pool.startswith(_PREFIX, autoescape=True),
    )
    wanted = session.scalars(select(TaskInstance.pool).where(*waiting).distinct()).all()
    known = set(session.scalars(select(Pool.pool).where(Pool.pool.in_(wanted))).all()) if wanted else set()
    missing = sorted(set(wanted) - known)
    said = "One run of a Millrace application at a time"
    session.add_all(Pool(pool=name, slots=1, description=said, include_deferred=False) for name in missing)
    try:
        session.commit()
    except IntegrityError:  # another scheduler was faster
        session.rollback()
        return []
    return missing


@hookimpl
def on_starting(component: Any) -> None:
    """Begin to look for missing pools where a scheduler starts."""
    if getattr(component, "job_type", None) == _SCHEDULER:
        threading.Thread(target=_look_forever, name="millrace-pools", daemon=True).start()


def _look_forever() -> None:
    from airflow.settings import NonScopedSession

    rest = threading.Event()
    while not rest.wait(_LOOK_SECONDS):
        if NonScopedSession is None:
            continue
        try:
            with NonScopedSession() as session:
                for name in create_missing(session):
                    log.info("The pool %s was created", name)
        except Exception:
            log.exception("Pools cannot be looked for; this is tried again")
