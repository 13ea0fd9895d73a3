"""Faults of requests, and hosts that are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.simulation.faults import Fault
from tests.histories.history import RandomFaults

if TYPE_CHECKING:
    from riverrun.simulation.turns import Host


class Failing(RandomFaults):
    """Loses requests and answers at a rate, and all requests of hosts that are cut off."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cut_off: set[Host] = set()

    def fault(self, client_id: str, request: str) -> Fault:
        if self.turns is not None and any(self.turns.host.is_within(host) for host in self.cut_off):
            return Fault(is_lost_before=True)
        return super().fault(client_id, request)
