"""The address at which an instance answers: a host and a port, and nothing else."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from pipeline.errors import ConfigError

_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")
_MAX_PORT = 65535


class ServerAddress(NamedTuple):
    """A host, IPv6 addresses without brackets, and a port; prints as `host:port`.

    Addresses come from other members of the group as well, and requests are made of them: what is more than a host and a port
    would name a path or a user.
    """

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`; IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Read the text form.

        >>> ServerAddress.parse("[::1]:8080")
        ServerAddress(host='::1', port=8080)

        Raises:
            ValueError: If it is not one.
        """
        host, colon, port = text.rpartition(":")
        if "//" in text:
            raise ValueError(_refused(text, "it is a URL; leave http:// and paths out"))
        if not colon or text.endswith("]"):
            raise ValueError(_refused(text, "it has no port"))
        if not _is_host(host):
            raise ValueError(_refused(text, "there is no such host"))
        if not (port.isascii() and port.isdecimal() and int(port[:6]) <= _MAX_PORT):
            raise ValueError(_refused(text, f"ports are numbers from 0 to {_MAX_PORT}"))
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and cannot be another one; IPv6 addresses without brackets.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("localhost.evil.example")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_address(where: str, text: str) -> ServerAddress:
    """An address as somebody has set it.

    Args:
        where: What it was given as, for messages.
        text: What was given.

    Raises:
        ConfigError: If it is none.
    """
    try:
        return ServerAddress.parse(text)
    except ValueError as error:
        message = f"{where}: {error}"
        raise ConfigError(message, hint="For example 127.0.0.1:8080.") from error


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            return "%" not in host and bool(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            return False
    return _NAME.fullmatch(host) is not None


def _refused(text: str, why: str) -> str:
    return f"{text!r} is not host:port: {why}"
