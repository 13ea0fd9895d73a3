"""The address on which an instance listens: a host and a port."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from riverrun.errors import ConfigError

_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")
_NUMBERS = re.compile(r"[0-9.]+")
_MAX_PORT = 65535


class ServerAddress(NamedTuple):
    """A host and a port, printed as `host:port`; IPv6 hosts are stored without brackets.

    Other members of the group send their addresses, and this process sends them requests. Anything beyond a host and a
    port is refused, as it could smuggle in a path or a user.
    """

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, with brackets around IPv6 addresses."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Read the text form.

        >>> ServerAddress.parse("[::1]:8080")
        ServerAddress(host='::1', port=8080)
        """
        host, colon, port = text.rpartition(":")
        if "//" in text:
            raise ValueError(_refused(text, "it is a URL; leave http:// and paths out"))
        if not colon or text.endswith("]"):
            raise ValueError(_refused(text, "it has no port"))
        if not _is_host(host):
            raise ValueError(_refused(text, "the host is not valid"))
        # The slice keeps int() short, whatever another process has sent.
        if not (port.isascii() and port.isdecimal() and int(port[:6]) <= _MAX_PORT):
            raise ValueError(_refused(text, f"ports are numbers from 0 to {_MAX_PORT}"))
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name always means this machine; IPv6 addresses come without brackets.

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
    """Return an address from the configuration."""
    try:
        return ServerAddress.parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint="For example 127.0.0.1:8080.") from error


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            return "%" not in host and bool(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            return False
    # No host name is made of numbers alone: resolvers would read 127.1 or 2130706433 as an address, too.
    if _NUMBERS.fullmatch(host):
        try:
            return bool(ipaddress.IPv4Address(host))
        except ValueError:
            return False
    return _NAME.fullmatch(host) is not None


def _refused(text: str, why: str) -> str:
    return f"{text!r} is not host:port: {why}"
