"""How commands end, for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import ApprovalNeededError, GateFailedError, NotReadyError, ReleaseError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 1
NOT_READY = 4
REFUSED = 5
GATE_FAILED = 6
NEEDS_APPROVAL = 7

_CODES: Mapping[type[StreamsError], int] = {
    NotReadyError: NOT_READY,
    GateFailedError: GATE_FAILED,
    ApprovalNeededError: NEEDS_APPROVAL,
    ReleaseError: REFUSED,
}


def code_of(error: StreamsError) -> int:
    """The exit code that tells of an error; the nearest of its classes decides."""
    return next((_CODES[each] for each in type(error).__mro__ if each in _CODES), FAILED)
