"""A fault: a host hangs before a request, as one that was stopped, or whose machine was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.simulation.faults import Fault

if TYPE_CHECKING:
    from riverrun.testing import Cluster


class Counts:
    """Counts the requests of a kind that the operator sends."""

    def __init__(self, cluster: Cluster, request: str) -> None:
        self._turns, self._request = cluster.turns, request
        self.count = 0

    def fault(self, _client_id: str, request: str) -> None:
        self.count += request == self._request and self._turns.host.name == "operator"


class HangsBefore:
    """Lets a host hang before a request of a kind: 1 is its first one from now on. Then perhaps another host, and so on."""

    def __init__(
        self, cluster: Cluster, request: str, number: int = 1, *, host: str = "operator", seconds: float = 60
    ) -> None:
        self._turns = cluster.turns
        self._request = request
        self.then(host, number, seconds)

    def then(self, host: str, number: int, seconds: float, request: str = "") -> None:
        """Let the next host hang, before a request of the same kind if none is named."""
        self._host, self._left, self._seconds = host, number, seconds
        self._request = request or self._request

    @property
    def has_hung(self) -> bool:
        return not self._left

    def fault(self, _client_id: str, request: str) -> Fault | None:
        if self.has_hung or request != self._request or self._turns.host.name != self._host:
            return None
        self._left -= 1
        if self._left:
            return None
        self._turns.hang(self._turns.host, self._seconds)
        return Fault(delay_s=0.01)
