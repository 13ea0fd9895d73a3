"""The values that settings of applications may have. A field of `StreamsConfig` is annotated with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from riverrun.config.address import checked_address
from riverrun.config.checks import check_path, check_type, expanded_user
from riverrun.config.secrets import checked_token
from riverrun.errors import ConfigError
from riverrun.records import is_legal_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LARGEST_INT, LARGEST_LONG = 2**31 - 1, 2**63 - 1
LONGEST_MS = 9_000_000_000_000
"""About the longest time that threads of Python can wait: 285 years."""
ATTRIBUTE = re.compile(r"[\w.]+:\w+")
"""A reference to a function or class: `module:attribute`."""
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]+")
_VARIABLE = re.compile(r"\$\{.*|\$[A-Z_][A-Z0-9_]*")


class Values(Protocol):
    """The values that a setting may have."""

    type_name: ClassVar[str]
    """The type in TOML, for the reference."""

    @property
    def bounds(self) -> str:
        """Return a sentence of what is allowed; empty if the type says it all."""

    def checked(self, path: Path | str, where: str, value: Any) -> Any:
        """Return a value as the application has it."""


class StreamsSetting(NamedTuple):
    """The declaration of a setting.

    Args:
        values: The values that it may have.
        is_kafkas: Whether Kafka Streams has it; otherwise only Riverrun does.
    """

    values: Values
    is_kafkas: bool


OWN = "own"
"""Annotates a setting that Kafka Streams does not have."""


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """Whole numbers within bounds (inclusive)."""

    lowest: int = 1
    highest: int = LARGEST_LONG
    type_name: ClassVar[str] = "number"

    @property
    def bounds(self) -> str:
        """Return both bounds; a long that Kafka does not bound has the lower one."""
        return f"At least {self.lowest}{'' if self.highest == LARGEST_LONG else f', at most {self.highest}'}."

    def checked(self, path: Path | str, where: str, value: Any) -> int:
        check_type(path, where, value, int)
        if value < self.lowest:
            raise ConfigError(f"{path}: {where} is {value!r}, and must be at least {self.lowest}")
        if value > self.highest:
            raise ConfigError(f"{path}: {where} is {value!r}, and must be at most {self.highest}")
        return int(value)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Numbers of replicas; -1 for the brokers' default."""

    type_name: ClassVar[str] = "number"
    _numbers: ClassVar[WholeNumbers] = WholeNumbers(-1, 2**15 - 1)

    @property
    def bounds(self) -> str:
        return self._numbers.bounds

    def checked(self, path: Path | str, where: str, value: Any) -> int:
        """Check the bounds, between which 0 is no number of replicas."""
        number = self._numbers.checked(path, where, value)
        if not number:
            message = f"{path}: {where} is 0, and must be at least 1, or -1"
            hint = "-1 leaves the number of replicas to the brokers' default.replication.factor."
            raise ConfigError(message, hint=hint)
        return number


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    bounds: ClassVar[str] = ""
    type_name: ClassVar[str] = "true/false"

    def checked(self, path: Path | str, where: str, value: Any) -> bool:
        check_type(path, where, value, bool)
        return bool(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words.

    Args:
        allowed: What may be written, and the value that it stands for.
        takes_code: Whether a reference to user code is allowed as well.
    """

    allowed: Mapping[str, str]
    takes_code: bool = False
    type_name: ClassVar[str] = "text"

    @property
    def bounds(self) -> str:
        listed = ", ".join(f"`{value}`" for value in dict.fromkeys(self.allowed.values()))
        return f"Allowed: {listed}{', or `module:attribute`' if self.takes_code else ''}."

    def checked(self, path: Path | str, where: str, value: Any) -> str:
        if self.takes_code and isinstance(value, str) and ATTRIBUTE.fullmatch(value):
            return value
        if not isinstance(value, str) or value not in self.allowed:
            message = f"{path}: {where} is {value!r}"
            also = " - or module:attribute" if self.takes_code else ""
            raise ConfigError(message, hint=f"Allowed: {', '.join(self.allowed)}{also}")
        return self.allowed[value]


def one_of(*words: str, takes_code: bool = False) -> OneOf:
    return OneOf({word: word for word in words}, takes_code)


def _text(path: Path | str, where: str, value: Any) -> str:
    check_type(path, where, value, str)
    check_path(f"{path}: {where}", value)
    return str(value)


def _plain(path: Path | str, where: str, value: Any) -> str:
    text = _text(path, where, value)
    variable = _VARIABLE.search(text)
    if variable is not None:
        message = f"{path}: {where} has {variable[0]}, which is not replaced here"
        raise ConfigError(message, hint="${NAME} is replaced in [kafka], [spark] and secrets: write the value out.")
    return text


@dataclass(frozen=True, slots=True)
class Text:
    """Text that a function reads.

    Args:
        read: Makes the value of a text, given the file, the key and the text. Raises `ConfigError` if it cannot.
    """

    read: Callable[[Path | str, str, str], str]
    bounds: ClassVar[str] = ""
    type_name: ClassVar[str] = "text"

    def checked(self, path: Path | str, where: str, value: Any) -> str:
        return self.read(path, where, _plain(path, where, value))


@dataclass(frozen=True, slots=True)
class Secret:
    """Text that is a secret, in which variables have been replaced.

    Args:
        is_token: Whether callers of the HTTP interface show it, so that it must be long.
    """

    is_token: bool = False
    bounds: ClassVar[str] = ""
    type_name: ClassVar[str] = "text"

    def checked(self, path: Path | str, where: str, value: Any) -> str:
        """Check the type, and a token's length."""
        text = _text(path, where, value)
        return checked_token(f"{path}: {where}", text) if self.is_token else text


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names.

    Args:
        are_hosts: Whether they are names of hosts.
    """

    are_hosts: bool = False
    bounds: ClassVar[str] = ""
    type_name: ClassVar[str] = "list of texts"

    def checked(self, path: Path | str, where: str, value: Any) -> tuple[str, ...]:
        check_type(path, where, value, list)
        for each in value:
            check_type(path, f"{where}: an item", each, str)
            if self.are_hosts and not _HOST.fullmatch(each):
                message = f"{path}: {where} has {each!r}, which is not the name of a host"
                hint = "Names are compared as they are written, without patterns, schemes and ports."
                raise ConfigError(message, hint=hint)
        return tuple(value)


@dataclass(frozen=True, slots=True)
class Prefixed:
    """Values of any type, each by its own name behind the prefix that the field is called after."""

    bounds: ClassVar[str] = ""
    type_name: ClassVar[str] = "table"

    def checked(self, path: Path | str, where: str, value: Any) -> Any:  # noqa: ARG002 - those of a client are its library's
        return value


def _topic(path: Path | str, where: str, text: str) -> str:
    if text and not is_legal_topic(text):
        message = f"{path}: {where} is {text!r}, which is not the name of a topic"
        raise ConfigError(message, hint="Names have the characters a-z A-Z 0-9 . _ -, at most 249 of them.")
    return text


def _address(path: Path | str, where: str, text: str) -> str:
    return str(checked_address(f"{path}: {where}", text)) if text else ""


def _directory(path: Path | str, where: str, text: str) -> str:
    if not text:
        raise ConfigError(f"{path}: {where} is empty", hint='Leave it out for ".riverrun/state", or name a directory.')
    # `~` is replaced as shells do: nobody wants a directory of that name.
    return str(expanded_user(f"{path}: {where}", text))


def _absolute(path: Path | str, where: str, text: str) -> str:  # noqa: ARG001 - all texts are places
    if not text or "://" in text:
        return text
    return str((Path(path).parent / expanded_user(f"{path}", text)).resolve())


TOPIC = Text(_topic)
"""The name of a topic."""
ADDRESS = Text(_address)
"""An address, `host:port`."""
DIRECTORY = Text(_directory)
"""A directory; `~` is replaced."""
PLACE = Text(_absolute)
"""A URL, or a path relative to the directory of `streams.toml`; `~` is replaced."""
