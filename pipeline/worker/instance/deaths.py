"""What follows when a stream thread has ended (`StreamsUncaughtExceptionHandler`)."""

from __future__ import annotations

import logging
import signal
import time
from typing import TYPE_CHECKING

import pipeline.errors
from pipeline.errors import ProcessingError
from pipeline.worker.instance.spawning import UNGUARDED, unguarded

if TYPE_CHECKING:
    from pipeline.errors import StreamsError
    from pipeline.worker.instance.processes import StreamProcess

log = logging.getLogger(__name__)

_ALLOWED = 10
"""So many deaths of processes within `_SECONDS` that nobody explained are too many."""
_SECONDS = 300.0


def _hint(exit_code: int | None) -> str:
    """Who may have ended a process that has said nothing."""
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


class Deaths:
    """The deaths of an instance's stream threads.

    Args:
        policy: `uncaught.exception.handler`.
    """

    def __init__(self, policy: str) -> None:
        """There was none."""
        self._policy = policy
        self._at: list[float] = []

    def judge(self, stream: StreamProcess) -> StreamsError | None:
        """Take note of the end of a process.

        Returns:
            The error with which the instance is to end; None if another process is to take the place of this one.
        """
        if stream.failure is None and stream.process.exitcode == UNGUARDED:
            return unguarded()
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _SECONDS] + [now]
        reason = stream.failure.message if stream.failure else f"exit code {stream.process.exitcode}"
        coordinates = dict(stream.failure.coordinates) if stream.failure else {}
        log.warning("stream thread %d ended: %s", stream.number, reason, extra=coordinates)
        replaces = stream.failure is None or self._policy == "replace_thread"
        if replaces and len(self._at) <= _ALLOWED:
            return None
        if stream.failure is None:
            message = f"Stream threads ended {len(self._at)} times within {_SECONDS:.0f} s, at last with {reason}"
            return ProcessingError(message, hint=_hint(stream.process.exitcode))
        kind: type[StreamsError] = getattr(pipeline.errors, stream.failure.kind, ProcessingError)
        return kind(stream.failure.message, hint=stream.failure.hint)
