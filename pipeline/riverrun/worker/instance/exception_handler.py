"""Replaces a stream thread that has ended, or ends the instance or all instances."""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import riverrun.errors
from riverrun.config.sections.streams import UNCAUGHT_EXCEPTION_RESPONSES
from riverrun.errors import ConfigError, ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.errors import StreamsError
    from riverrun.worker.instance.stream_threads import StreamThreadProcess

log = logging.getLogger(__name__)

_ALLOWED = 10
"""More processes than this that end within `_SECONDS` are too many."""
_SECONDS = 300.0


def _hint(exit_code: int | None) -> str:
    """Return a hint on what may have ended a process that reported no error."""
    log_has_more = "Its standard error output may say more. Nothing that was committed is lost."
    if exit_code is None or exit_code >= 0:
        return f"Functions of the topology, or libraries that they call, may have ended the process (os._exit). {log_has_more}"
    name = _signal_name(-exit_code)
    if name == "SIGKILL":
        return (
            f"Somebody has killed it: the system, if it has no memory left, or a limit of its container. {log_has_more}"
        )
    return f"Signal {name} has ended it: a library that functions of the topology call may have crashed. {log_has_more}"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


@dataclass(frozen=True, slots=True)
class End:
    """The decision that an instance ends.

    Args:
        error: The error with which it ends.
        of_all: Whether all instances end.
    """

    error: StreamsError
    of_all: bool


class UncaughtExceptionHandler:
    """Decides how to react when a stream thread of an instance has ended (`StreamsUncaughtExceptionHandler`).

    Args:
        handler: Returns the reaction to an error (`replace_thread`, `shutdown_client`, `shutdown_application`).
    """

    def __init__(self, handler: Callable[[StreamsError], str]) -> None:
        self._handler = handler
        self._at: list[float] = []

    def handle(self, stream: StreamThreadProcess) -> End | None:
        """Decide how to react to the end of a process.

        Returns:
            How the instance ends; None if another process replaces this one.

        Raises:
            ConfigError: If the handler returns something else.
        """
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _SECONDS] + [now]
        reason = stream.failure.message if stream.failure else f"exit code {stream.process.exitcode}"
        coordinates = dict(stream.failure.coordinates) if stream.failure else {}
        log.warning("stream thread %d ended: %s", stream.number, reason, extra=coordinates)
        error = self._error(stream, reason)
        is_few = len(self._at) <= _ALLOWED
        if is_few and stream.failure is None:
            return None
        wanted = self._asked(error)
        if is_few and wanted == "replace_thread":
            return None
        return End(error, wanted == "shutdown_application")

    def _error(self, stream: StreamThreadProcess, reason: str) -> StreamsError:
        if stream.failure is None:
            message = f"Stream threads ended {len(self._at)} times within {_SECONDS:.0f} s, at last with {reason}"
            return ProcessingError(message, hint=_hint(stream.process.exitcode))
        kind: type[StreamsError] = getattr(riverrun.errors, stream.failure.kind, ProcessingError)
        return kind(stream.failure.message, hint=stream.failure.hint)

    def _asked(self, error: StreamsError) -> str:
        wanted = self._handler(error)
        if wanted not in UNCAUGHT_EXCEPTION_RESPONSES:
            message = f"The handler of uncaught exceptions returns {wanted!r} for: {error.message}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(UNCAUGHT_EXCEPTION_RESPONSES)}")
        return wanted
