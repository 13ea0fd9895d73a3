"""kafka-python, which does what librdkafka cannot or does not survive: its words for the properties of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
