"""The clients of a cluster in memory, for all that takes `riverrun.kafka.clients.Clients`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from riverrun.errors import BrokerError
from riverrun.records import TopicPartition
from riverrun.simulation.admin import MemoryAdminClient
from riverrun.simulation.consumer import MemoryConsumer
from riverrun.simulation.coordinator import MemoryConnection
from riverrun.simulation.producer import MemoryProducer
from riverrun.simulation.refusals import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.simulation.brokers import Brokers

_BROKERS: WeakValueDictionary[str, Brokers] = WeakValueDictionary()
"""Those of this process by name: copies of clients find them again."""


def clients_of(brokers: Brokers, name: str) -> MemoryClients:
    """Return the clients of a cluster; its name is unique in this process."""
    _BROKERS[name] = brokers
    return MemoryClients(name)


@dataclass(frozen=True, slots=True)
class MemoryClients:
    """Makes clients of a cluster. Copies are equal, and work in the process of the cluster only."""

    name: str

    def producer(self, settings: Mapping[str, Any]) -> MemoryProducer:
        """See `Clients.producer`."""
        return MemoryProducer(self._brokers, settings)

    def consumer(self, settings: Mapping[str, Any]) -> MemoryConsumer:
        """See `Clients.consumer`."""
        return MemoryConsumer(self._brokers, settings)

    def admin(self, settings: Mapping[str, Any]) -> MemoryAdminClient:
        """See `Clients.admin`."""
        return MemoryAdminClient(self._brokers, settings)

    def coordinator(
        self,
        properties: Mapping[str, str],  # noqa: ARG002 - there is nothing to connect to
        client_id: str,
        group: str,
        attempt: int,  # noqa: ARG002 - as above
    ) -> MemoryConnection:
        """See `Clients.coordinator`."""
        return MemoryConnection(self._brokers, client_id, group)

    def log_sizes(
        self,
        properties: Mapping[str, str],  # noqa: ARG002 - as above
        client_id: str,
        topics: Iterable[str],
        within_s: float,  # noqa: ARG002 - as above
    ) -> dict[TopicPartition, int]:
        """See `Clients.log_sizes`."""
        brokers, wanted = self._brokers, set(topics)

        def sizes() -> dict[TopicPartition, int]:
            found = (topic for topic in brokers.topics if topic.name in wanted)
            return {
                TopicPartition(each.name, number): log.size for each in found for number, log in enumerate(each.logs)
            }

        try:
            return brokers.ask(client_id, "DescribeLogDirs", sizes)
        except (LostError, RefusedError):
            # As with a real cluster, no sizes are better than no plan.
            return {}

    @property
    def _brokers(self) -> Brokers:
        found = _BROKERS.get(self.name)
        if found is None:
            message = f"The cluster {self.name} in memory is not in this process"
            raise BrokerError(message, hint="Its clients work in the process that has made it.")
        return found
