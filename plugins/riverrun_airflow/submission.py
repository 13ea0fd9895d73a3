"""Tasks whose work a driver does: submitted once, found again by further attempts, concluded when the driver has ended."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from riverrun.decoders import json_decoder
from riverrun.errors import EngineError, UnderWayError
from riverrun_airflow.acting import acting, in_airflow
from riverrun_airflow.deadlines import deadline_ms, time_left
from riverrun_airflow.drivers import DONE, ENDED, Note, end, is_local, start
from riverrun_airflow.sessions import now_ms
from riverrun_airflow.triggers import DriverTrigger, ended

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from airflow.sdk import Context

    from riverrun.config import ProjectConfig
    from riverrun_airflow.location import Location
    from riverrun_airflow.work_requests import Request

# Key of a task's state: the driver that does its work, until the outcome is known.
_DRIVER = "driver"
T = TypeVar("T")


class Computing(Protocol):
    """A task that computes on Spark, itself or by a driver."""

    config: str
    riverrun_conn_id: str
    master: str
    apart: bool | None
    spark_page: str

    @property
    def log(self) -> Any:
        """The task's log."""

    def execute(self, context: Context) -> Any:
        """Compute, or submit the work."""

    def defer(self, *, trigger: Any, method_name: str) -> NoReturn:
        """Wait for a trigger without a slot."""


def is_apart(task: Computing, project: ProjectConfig) -> bool:
    """Return whether a driver does the work of a task: as the task says, otherwise if Spark is a cluster."""
    return not is_local(project, task.master) if task.apart is None else task.apart


def submit(task: Computing, context: Context, location: Location, request: Request) -> NoReturn:
    """Start a driver, or find that of an earlier attempt, and defer the task until it has ended: see `concluded`."""
    store: Any = context["task_state_store"]
    # Nothing is started for a task whose time is up.
    time_left(context)
    driver, until_ms = store.get(_DRIVER), deadline_ms(context)
    try:
        if driver is None:
            driver = {"driver": uuid.uuid4().hex, "since_ms": now_ms()}
            # Before the start: if this attempt dies in between, the next one must not start a second driver.
            store.set(_DRIVER, driver)
            start(location, driver["driver"], request, until_ms)
        else:
            task.log.info("the driver %s of an earlier attempt does the work", driver["driver"])
        trigger = DriverTrigger(driver, task.config, task.riverrun_conn_id, until_ms=until_ms)
        task.defer(trigger=trigger, method_name="driven")
    except (OSError, EngineError):
        store.delete(_DRIVER)
        raise
    except (KeyboardInterrupt, AirflowTaskTimeout):
        # A task that is cancelled before it defers has no trigger that would end the driver.
        end(location.project(), driver["driver"])
        raise


def note_of(event: dict[str, Any]) -> Note:
    """Return the last note of a driver, from the event of its trigger."""
    return json_decoder(Note).decode(ended(event))


def concluded(task: Computing, context: Context, event: dict[str, Any], conclude: Callable[[Note], T]) -> T:
    """Return the result of a task whose driver has ended. A driver that was asked to end is replaced by another one."""
    store: Any = context["task_state_store"]
    note = note_of(event)
    task.spark_page = note.spark
    task.log.info("%s", note.said)
    if note.state == DONE:
        try:
            found = acting(lambda: conclude(note))
        # No retry follows, and a cleared task must work anew. After other failures, a retry concludes again.
        except AirflowFailException:
            store.delete(_DRIVER)
            raise
        store.delete(_DRIVER)
        return found
    store.delete(_DRIVER)
    # Somebody has ended the driver, or its time was up: if the task has time left, another driver does the rest.
    if note.state == ENDED:
        again: T = task.execute(context)
        return again
    said = in_airflow(note.said)
    if note.is_under_way:
        raise UnderWayError(said)
    raise (AirflowException if note.may_help else AirflowFailException)(said)
