"""Decides how a task fails, and with which message: Airflow retries only failures that waiting may resolve.

Hints name commands and options of the shell. In Airflow, users trigger DAGs and set parameters.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from riverrun.config.secrets import redacted
from riverrun.errors import StreamsError, of_an_interrupt
from riverrun.extras import missing_extra
from riverrun.hosting.release import ACTIONS
from riverrun_airflow.sessions import is_worth_another_attempt, of_ended_java

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_TOLD_TO_END = "Airflow ended the task (SIGTERM). What is committed stays; another attempt does the rest."


# Atomic: backtracking would satisfy the lookahead below by cutting a name short. A dot after a name ends the sentence.
_APP = r"(?>[\w-]+(?:\.[\w-]+)*)"
# Each has a task of its name in the DAG of releases, which may be cleared.
_COMPUTING = "|".join(name for name, action in ACTIONS.items() if action.computes)
_PHRASES = re.compile(
    rf"""`?riverrun[ ](?:
        held[ ](?P<action>publish|judge|discard)[ ](?P<held>{_APP})(?:[ ]--approve[ ](?P<verdict>[\w-]*\w))?
        | run[ ](?P<run>{_APP})(?:[ ]--(?P<edge>from|to)[ ](?P<at>\S*\w))?(?![ ]--)
        | release[ ]approve[ ](?P<approved>{_APP})(?:[ ]--verdict[ ][\w-]*\w)?
        | release[ ](?P<step>{_COMPUTING})[ ](?P<taken>{_APP})
        | release[ ]start[ ](?P<started>{_APP})(?:[ ]--to[ ](?P<version>{_APP}))?
        | check[ ](?P<checked>{_APP})
    )`?
    | riverrun[ ][^`;\n]*  # other commands have no DAG: they stay
    | (?P<without>--without[ ](?:"[^"]+"|\S+)(?:[ ]--without[ ](?:"[^"]+"|\S+))*)
    | --(?P<option>[a-z][a-z-]*)(?:(?<=approve)[ ](?P<approval>[\w-]*\w))?""",
    re.VERBOSE,
)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", ""})
# Arguments of operators that are called otherwise than their options of the shell.
_ARGUMENTS = {"option": "options", "package": "packages", "binary": "is_binary", "topic": "recompute_topics"}


def in_airflow(text: str) -> str:
    """Return a message with its commands and options in Airflow's terms: the DAG to trigger, the parameter to set.

    >>> in_airflow("Publish them: riverrun held publish till --approve c1. Or riverrun held discard till")
    'Publish them: trigger till__held with action=publish, approve=c1. Or trigger till__held with action=discard'
    >>> in_airflow("The end (--to) must not lie before the start (--from).")
    'The end (`to`) must not lie before the start (`from`).'
    >>> in_airflow("Look at them, then repeat it with --approve c1")
    'Look at them, then repeat it with approve=c1'
    >>> in_airflow('Leave them out: --without visits --without "export lake"')
    'Leave them out: without=visits,export lake'
    >>> in_airflow("Complete it: riverrun release cut till"), in_airflow("`riverrun release abort till` deletes it.")
    ('Complete it: clear the task cut of till__release', '`riverrun release abort till` deletes it.')
    """
    return _PHRASES.sub(_in_airflow, text)


def _in_airflow(found: re.Match[str]) -> str:
    given = found.groupdict()
    if given["held"]:
        approved = f", approve={given['verdict']}" if given["verdict"] else ""
        return f"trigger {given['held']}__held with action={given['action']}{approved}"
    if given["run"]:
        edge = f" with {given['edge']}={given['at']}" if given["edge"] else ""
        return f"trigger {given['run']}__backfill{edge}"
    if given["approved"]:
        return f"answer the task approve of {given['approved']}__release (Required actions)"
    if given["taken"]:
        return f"clear the task {given['step']} of {given['taken']}__release"
    if given["started"]:
        version = f" with version={given['version']}" if given["version"] else ""
        return f"trigger {given['started']}__release{version}"
    if given["checked"]:
        return f"trigger {given['checked']}__quality"
    return _parameter(given) or found[0]


def _parameter(given: Mapping[str, str | None]) -> str:
    """Return an option as the parameter of a DAG; empty if there is none."""
    if given["without"]:
        # Names with spaces are in quotes.
        names = (name.strip(' "') for name in given["without"].split("--without ") if name)
        return f"without={','.join(names)}"
    if not given["option"]:
        return ""
    named = _ARGUMENTS.get(given["option"], given["option"].replace("-", "_"))
    return f"{named}={given['approval']}" if given["approval"] else f"`{named}`"


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
        # The bridge to Java answers an interrupt by failing, with an error of another class.
        if of_an_interrupt(error):
            raise AirflowException(_TOLD_TO_END) from None
        # `from None`: logs show each cause with all its frames, and the message of an error of ours is complete without.
        if not is_worth_another_attempt(error):
            raise AirflowFailException(in_airflow(redacted(str(error)))) from None
        if isinstance(error, StreamsError):
            error.hint = in_airflow(error.hint) if error.hint else None
            raise error.with_traceback(None) from None
        raise


def end_at_once() -> None:
    """Interrupt this thread's work, as Ctrl-C would; for `on_kill`."""
    # Airflow calls this in the handler of SIGTERM, on the thread that waits for Spark. Spark's connection is in use there,
    # so it cannot ask Spark to stop; Spark ends with this process. After a time-out, the error has been raised already.
    if not isinstance(sys.exc_info()[1], AirflowTaskTimeout):
        raise KeyboardInterrupt


def number(name: str, value: int | str) -> int:
    """Return a natural number that a template may have turned into text; 0 for an empty text. Fail for other texts.

    >>> number("max_records_per_slice", "500"), number("max_records_per_slice", "")
    (500, 0)
    """
    text = str(value).strip() or "0"
    if not text.isdecimal():
        raise AirflowFailException(f"{name} is {value!r}, which is not a natural number")
    return int(text)


def truth(name: str, value: bool | str) -> bool:  # noqa: FBT001 - templates give text
    """Return a truth value that a template may have turned into text. Fail for other texts.

    >>> truth("dry", "True"), truth("dry", False)
    (True, False)
    """
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise AirflowFailException(f"{name} is {value!r}, which is neither true nor false")
    return text in _TRUE
