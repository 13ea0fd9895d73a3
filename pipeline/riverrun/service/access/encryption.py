"""TLS of the HTTP interface, with PEM files as librdkafka names them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from riverrun.config import StreamsConfig


def server_tls(streams: StreamsConfig) -> ssl.SSLContext | None:
    """Return the TLS context that an instance uses towards callers; None if it answers in clear.

    Raises:
        ConfigError: If its certificate or key cannot be used.
    """
    certificate, key = streams.server_ssl_certificate_location, streams.server_ssl_key_location
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key or None, lambda: streams.server_ssl_key_password)
    except (OSError, ValueError) as error:  # SSL's errors are OSErrors
        message = f"server.ssl.certificate.location {certificate} cannot be used: {error}"
        raise ConfigError(message, hint="PEM files are needed: the certificates, and their key.") from error
    return context


def client_tls(streams: StreamsConfig) -> ssl.SSLContext | None:
    """Return the TLS context for asking instances; None if these answer in clear.

    Raises:
        ConfigError: If the certificates of authorities cannot be read.
    """
    authorities = streams.server_ssl_ca_location
    if not (authorities or streams.server_ssl_certificate_location):
        return None
    try:
        return ssl.create_default_context(cafile=authorities or None)
    except OSError as error:
        message = f"server.ssl.ca.location {authorities} cannot be used: {error}"
        raise ConfigError(message, hint="A PEM file is needed: certificates of authorities.") from error
