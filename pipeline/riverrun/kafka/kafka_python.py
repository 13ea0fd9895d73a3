"""Uses kafka-python for requests that librdkafka lacks or crashes on; maps librdkafka's properties to its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from riverrun.kafka.tokens import tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

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


def connection(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a connection with kafka-python's names; others are left out."""
    found: dict[str, Any] = {_NAMES[name]: value for name, value in kafka.items() if name in _NAMES}
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
    if "security_protocol" in found:
        found["security_protocol"] = found["security_protocol"].upper()
    tokens = tokens_of(kafka)
    if tokens is not None:
        # Its errors are clearer here, as in `client_properties`.
        tokens.current()
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens.for_kafka_python()}
    return found


def said_by(metadata: bytes) -> bytes:
    """Return the bytes that a member of a group added to its subscription; empty if it is none, or added none."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription  # noqa: PLC0415 - the library loads for long

    try:
        return bytes(ConsumerProtocolSubscription.decode(metadata).user_data or b"")
    except Exception as error:  # noqa: BLE001 - whatever the library's parsers stumble over
        log.warning("a member's subscription cannot be read: %r", error)
        return b""


def planned_in(assignment: bytes) -> bytes:
    """Return the bytes that a leader added to an assignment; empty if it is none, or added none."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment  # noqa: PLC0415 - as above

    try:
        return bytes(ConsumerProtocolAssignment.decode(assignment).user_data or b"")
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("an assignment of the group's leader cannot be read: %r", error)
        return b""
