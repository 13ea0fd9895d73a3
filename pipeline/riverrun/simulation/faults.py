"""The seam of faults: what happens to a request on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Fault:
    """The fate of one request. The parts combine: a request may be delayed, then lost.

    Args:
        delay_s: How long it is on its way.
        is_lost_before: The brokers never receive it.
        is_lost_after: The brokers act, and their answer is lost: the client does not know the outcome.
        refusal: The code with which the brokers refuse it, without acting.
    """

    delay_s: float = 0.0
    is_lost_before: bool = False
    is_lost_after: bool = False
    refusal: int | None = None


NO_FAULT = Fault()


class Faults(Protocol):
    """Decides what happens to requests."""

    def fault(self, client_id: str, request: str) -> Fault | None:
        """Return what happens to the next request of a client, or None. Requests have Kafka's names, such as `EndTxn`."""
        ...


class NoFaults:
    """Lets every request pass."""

    def fault(self, client_id: str, request: str) -> Fault:  # noqa: ARG002 - see `Faults`
        """See `Faults.fault`."""
        return NO_FAULT
