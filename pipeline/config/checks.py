"""Checks that hold for every part of a file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def check_keys(path: Path, where: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Make sure that a table has no other keys.

    Args:
        path: What it was read from, for messages.
        where: Its name; empty for the file as a whole.
        table: The table.
        allowed: The keys.

    Raises:
        ConfigError: If it has one.
    """
    known = list(allowed)
    for key in table:
        if key not in known:
            message = f"{path}: unknown key {f'{where}.' if where else ''}{key}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(known)}. {nearest(key, known)}".strip())


def check_type(path: Path | str, where: str, value: Any, expected: Callable[..., Any]) -> None:
    """Make sure that a value is of a type.

    Args:
        path: What it was read from, for messages.
        where: Where in it.
        value: The value.
        expected: The type.

    Raises:
        ConfigError: If it is of another.
    """
    if not isinstance(value, expected):  # type: ignore[arg-type]
        article = "an" if expected is int else "a"
        message = f"{path}: {where} is {value!r}, not {article} {expected.__name__}"
        raise ConfigError(message)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not known: the nearest that is, or else all."""
    names = [name for name in known if not name.startswith("_")]
    close = difflib.get_close_matches(word, names, 1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(names)) or 'none'}"
