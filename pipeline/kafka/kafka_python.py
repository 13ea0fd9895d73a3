"""kafka-python, which does what librdkafka cannot or does not survive: its words for the properties of a connection."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
"""librdkafka's properties that matter for a connection, by their names in kafka-python."""
_LOOKUP_SECONDS = 0.1
"""Between two questions who a group's coordinator is."""
PRIVATE = ("_heartbeat_enabled", "_lock", "_manager", "_send_group_coordinator_request")
"""What is used of a coordinator that the library does not offer; besides, `_coordinator` of a consumer, `_net` of a manager."""


def connection(kafka: Mapping[str, str]) -> dict[str, Any]:
    """The properties of a connection in kafka-python's words; others are left out.

    Args:
        kafka: Client properties, as librdkafka names them.
    """
    found: dict[str, Any] = {_NAMES[name]: value for name, value in kafka.items() if name in _NAMES}
    found["reconnect_backoff_max_ms"] = 1_000  # the default of 30 s outlasts sessions
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
    if "security_protocol" in found:
        found["security_protocol"] = found["security_protocol"].upper()
    return found


class GroupCoordinator:
    """A consumer's membership in its group, which the library does not show.

    Args:
        consumer: A `KafkaConsumer` of kafka-python.

    Raises:
        ConfigError: If another version of the library is installed, which is made otherwise.
    """

    def __init__(self, consumer: Any) -> None:
        """Have topics that are deleted stay so, and pause between two questions who the coordinator is."""
        coordinator: Any = getattr(consumer, "_coordinator", None)
        missing = [name for name in PRIVATE if not hasattr(coordinator, name)]
        if missing:
            message = f"kafka-python {version('kafka-python')} is made in another way: it has no {', '.join(missing)}"
            raise ConfigError(message, hint="pip install 'kafka-python>=3.0.12,<3.1'")
        self._coordinator = coordinator
        # An input that is deleted must be missed, not made anew. The library forgets its own setting of this name.
        self._coordinator._manager.cluster.config["allow_auto_create_topics"] = False
        self._pace_lookups()

    @property
    def is_fenced(self) -> bool:
        """Whether another process has joined with the same `group_instance_id`: then this one is out for good."""
        with self._coordinator._lock:
            is_stable = "stable" in str(self._coordinator.state).lower()
            is_silent = is_stable and not self._coordinator._heartbeat_enabled
            return is_silent and not self._coordinator.rejoin_needed  # else it is about to join again

    @property
    def needs_rejoin(self) -> bool:
        """Whether it has to join, or to join again."""
        return bool(self._coordinator.need_rejoin())

    def request_rejoin(self) -> None:
        """Join again with the next poll."""
        self._coordinator.request_rejoin()

    def _pace_lookups(self) -> None:
        """Have the client pause between two questions who the coordinator is.

        While brokers still name one that has died, the library asks again at once: it is not the answer that fails.
        """
        coordinator = self._coordinator
        ask, asked_at = coordinator._send_group_coordinator_request, 0.0

        async def ask_in_time() -> Any:
            nonlocal asked_at
            pause_s = asked_at + _LOOKUP_SECONDS - time.monotonic()
            if pause_s > 0:
                await coordinator._manager._net.sleep(pause_s)
            asked_at = time.monotonic()
            return await ask()

        coordinator._send_group_coordinator_request = ask_in_time
