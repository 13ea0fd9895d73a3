"""Functions that hide characters."""

from __future__ import annotations

from riverrun.sql.functions.registry import scalar

THEME = "Masks"
_MASKS = "[upper STRING], [lower STRING], [digit STRING], [other STRING]"
_NULLS = frozenset(range(1, 5))
_AFTER_COUNT = frozenset(range(2, 6))
_DEFAULTS = ("X", "x", "n", "-")


def _masked(text: str, masks: tuple[str | None, ...]) -> str:
    upper, lower, digit, other = list(masks) + list(_DEFAULTS[len(masks) :])
    return "".join(_mask(character, upper, lower, digit, other) for character in text)


def _mask(character: str, upper: str | None, lower: str | None, digit: str | None, other: str | None) -> str:
    if character.isupper():
        mask = upper
    elif character.islower():
        mask = lower
    else:
        mask = digit if character.isdigit() else other
    return character if mask is None else mask


def _checked(count: int) -> int:
    if count < 0:
        message = f"a count of characters below zero: {count}"
        raise ValueError(message)
    return count


_COUNT = {"count": _checked}


@scalar(f"MASK(text STRING, {_MASKS}) -> STRING", theme=THEME, nulls=_NULLS)
def mask(text: str, *masks: str | None) -> str:
    """The text with letters, digits and other characters hidden; a mask that is NULL leaves them as they are."""
    return _masked(text, masks)


@scalar(
    f"MASK_LEFT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=THEME,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_left(text: str, count: int, *masks: str | None) -> str:
    """The text with its first characters hidden."""
    at = _checked(count)
    return _masked(text[:at], masks) + text[at:]


@scalar(
    f"MASK_RIGHT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=THEME,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_right(text: str, count: int, *masks: str | None) -> str:
    """The text with its last characters hidden."""
    at = max(len(text) - _checked(count), 0)
    return text[:at] + _masked(text[at:], masks)


@scalar(
    f"MASK_KEEP_LEFT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=THEME,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_keep_left(text: str, count: int, *masks: str | None) -> str:
    """The text with all but its first characters hidden."""
    at = _checked(count)
    return text[:at] + _masked(text[at:], masks)


@scalar(
    f"MASK_KEEP_RIGHT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=THEME,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_keep_right(text: str, count: int, *masks: str | None) -> str:
    """The text with all but its last characters hidden."""
    at = max(len(text) - _checked(count), 0)
    return _masked(text[:at], masks) + text[at:]
