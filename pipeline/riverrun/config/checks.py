"""Checks shared by all sections of `streams.toml`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def check_keys(path: Path, where: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Check that a table has no unknown keys.

    Args:
        path: The file, for messages.
        where: Name of the table; empty for the whole file.
        table: The table.
        allowed: The known keys.

    Raises:
        ConfigError: If the table has an unknown key.
    """
    known = list(allowed)
    for key in table:
        if key not in known:
            message = f"{path}: unknown key {f'{where}.' if where else ''}{key}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(known)}. {nearest(key, known)}".strip())


def check_type(path: Path | str, where: str, value: Any, expected: Callable[..., Any]) -> None:
    """Check the type of a value.

    Args:
        path: The file, for messages.
        where: Place in the file.
        value: The value.
        expected: The type.

    Raises:
        ConfigError: If the value has another type.
    """
    if not isinstance(value, expected):  # type: ignore[arg-type]
        article = "an" if expected is int else "a"
        message = f"{path}: {where} is {value!r}, not {article} {expected.__name__}"
        raise ConfigError(message)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the nearest known word, or else all of them."""
    names = [name for name in known if not name.startswith("_")]
    close = difflib.get_close_matches(word, names, 1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(names)) or 'none'}"
