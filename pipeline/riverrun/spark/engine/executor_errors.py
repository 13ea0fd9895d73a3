"""Errors of executors: whether another attempt may help, and their form as text, which is all that Spark transports."""

from __future__ import annotations

import json

import riverrun.errors
from riverrun.errors import ProcessingError, StreamsError


def another_attempt_may_help(error: StreamsError) -> bool:
    """Return whether Spark should retry the task, rather than the run end."""
    may_pass = isinstance(error, riverrun.errors.TaskError | riverrun.errors.StateInUseError)
    return may_pass or bool(getattr(error, "retriable", False))


def describe_error(error: StreamsError) -> str:
    """Return an executor's error as text that `rebuilt_error` understands."""
    return json.dumps([type(error).__name__, error.message, error.hint, bool(getattr(error, "retriable", False))])


def rebuilt_error(text: str) -> StreamsError:
    """Return an executor's error, rebuilt in the driver."""
    name, message, hint, may_help = json.loads(text)
    kind = getattr(riverrun.errors, name, ProcessingError)
    rebuilt: StreamsError = kind(message, hint=hint, retriable=True) if may_help else kind(message, hint=hint)
    return rebuilt
