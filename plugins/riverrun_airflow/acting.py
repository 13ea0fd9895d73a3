"""Decides how a task fails: Airflow retries only failures that waiting may resolve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from riverrun.config.secrets import redacted
from riverrun.errors import StreamsError, of_an_interrupt
from riverrun.extras import missing_extra
from riverrun_airflow.sessions import is_worth_another_attempt, of_ended_java

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_TOLD_TO_END = "Airflow ended the task (SIGTERM). What is committed stays; another attempt does the rest."


def acting(action: Callable[[], T]) -> T:
    """Run an action. Only failures that waiting may resolve, and interruptions, are left to Airflow's retries."""
    from riverrun.hosting.process import quiet_libraries

    quiet_libraries()
    try:
        return action()
    except KeyboardInterrupt:
        raise AirflowException(_TOLD_TO_END) from None
    except Exception as error:  # sorted below: retried by Airflow, or final
        error = missing_extra(error) or of_ended_java(error) or error
        if of_an_interrupt(error):  # the bridge to Java answers an interrupt by failing
            raise AirflowException(_TOLD_TO_END) from None
        # Logs show each cause with all its frames; the message of an error of ours is complete without them.
        if not is_worth_another_attempt(error):
            raise AirflowFailException(redacted(str(error))) from None
        if isinstance(error, StreamsError):
            raise error.with_traceback(None) from None
        raise


def end_at_once() -> None:
    """Interrupt this thread's work, as Ctrl-C would; for `on_kill`.

    Airflow calls it in the handler of SIGTERM, on the thread that waits for Spark. Spark's connection is in use there,
    so it cannot ask Spark to stop. Spark ends with this process. After a time-out nothing is left to interrupt: the
    error has been raised already.
    """
    if not isinstance(sys.exc_info()[1], AirflowTaskTimeout):
        raise KeyboardInterrupt
