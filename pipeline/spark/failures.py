"""What Spark's exceptions say, in words that help."""

from __future__ import annotations

import re

from pipeline.errors import ConfigError

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception)\b.*$", re.MULTILINE)
_LONGEST = 500


def missing_module(error: BaseException) -> ConfigError | None:
    """What to do if a job has failed because executors lack a module; None if that is not why."""
    found = _MISSING.search(str(error))
    if found is None:
        return None
    hint = (
        "Install it on every node, or send it along: spark.submit.pyFiles or spark.archives in [spark] of streams.toml."
    )
    return ConfigError(f"Executors cannot import {found[1]!r}", hint=hint)


def cause_of(error: BaseException) -> str:
    """The line of a Spark exception that says what happened: its text holds stack traces of two languages."""
    lines = _RAISED.findall(str(error))
    first = next(iter(str(error).strip().splitlines()), repr(error))
    return (lines[-1] if lines else first)[:_LONGEST]
