"""How commands end, for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError, GateFailedError, NotReadyError, ReleaseError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 1
NOT_UNDERSTOOD = 2
NOT_RUNNING = 3
NOT_READY = 4
REFUSED = 5
GATE_FAILED = 6
NEEDS_APPROVAL = 7
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    0: "Done.",
    FAILED: "An error of the configuration, the brokers or the data, with a hint; or a check of `demo` found differences.",
    NOT_UNDERSTOOD: "The command line has an unknown command or option, or lacks an argument.",
    NOT_RUNNING: "The broker does not run (`broker status`).",
    NOT_READY: "The candidate is not ready (`release await`). Waiting may help.",
    REFUSED: "The release refuses: it is at another step, a verdict no longer holds, or another user is working on it.",
    GATE_FAILED: "A critical expectation failed (`release gate`, `check`). The live version stays live.",
    NEEDS_APPROVAL: "A person must decide: `release approve`.",
    INTERRUPTED: "Interrupted by Ctrl-C or SIGTERM. A worker ends with 0 instead.",
}
"""Every exit code, with its meaning."""

_CODES: Mapping[type[StreamsError], int] = {
    NotReadyError: NOT_READY,
    GateFailedError: GATE_FAILED,
    ApprovalNeededError: NEEDS_APPROVAL,
    ReleaseError: REFUSED,
}


def code_of(error: StreamsError) -> int:
    """Return the exit code of an error; the nearest of its classes decides."""
    return next((_CODES[each] for each in type(error).__mro__ if each in _CODES), FAILED)
