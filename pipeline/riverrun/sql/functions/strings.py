"""Functions of strings, many of which take bytes as well, and functions that mask characters."""

from __future__ import annotations

import hashlib
import re
import sys
import uuid
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import scalar
from riverrun.sql.functions.values import MOST_ITEMS, check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

THEME = "Strings"
_HALVES = range(0xD800, 0xE000)
"""Code points of halves of characters, which no text has."""


@scalar("UCASE(text STRING) -> STRING", theme=THEME)
def upper_case(text: str) -> str:
    """The text in upper case."""
    return text.upper()


@scalar("LCASE(text STRING) -> STRING", theme=THEME)
def lower_case(text: str) -> str:
    """The text in lower case."""
    return text.lower()


@scalar("INITCAP(text STRING) -> STRING", theme=THEME)
def capitals(text: str) -> str:
    """The text with the first letter of each word in upper case, and all others in lower case."""
    return re.sub(r"(^|\s)(\S)", lambda found: found[1] + found[2].upper(), text.lower())


@scalar("TRIM(text STRING) -> STRING", theme=THEME)
def trim(text: str) -> str:
    """The text without spaces at its ends."""
    return text.strip("".join(map(chr, range(33))))


@scalar("LEN(text STRING) -> INTEGER", theme=THEME)
@scalar("LEN(data BYTES) -> INTEGER", theme=THEME)
def length(text: str | bytes) -> int:
    """The number of characters or bytes."""
    return len(text)


@scalar("SUBSTRING(text STRING, position INTEGER, [length INTEGER]) -> STRING", theme=THEME)
@scalar("SUBSTRING(data BYTES, position INTEGER, [length INTEGER]) -> BYTES", theme=THEME)
def substring(text: Any, position: int, count: int | None = None) -> Any:
    """The part from a position on, counted from 1, or from the end if it is negative."""
    start = min(position - 1, len(text)) if position > 0 else max(len(text) + position, 0) if position else 0
    end = len(text) if count is None else min(start + max(count, 0), len(text))
    return text[start:end]


@scalar("CONCAT(first STRING, [more STRING...]) -> STRING", theme=THEME, nulls=True)
def concatenated(*texts: str | None) -> str:
    """The texts or bytes one after the other, without those that are NULL."""
    found: str = _joined("", texts)
    return found


@scalar("CONCAT(first BYTES, [more BYTES...]) -> BYTES", theme=THEME, nulls=True)
def concatenated_bytes(*data: bytes | None) -> bytes:
    """The texts or bytes one after the other, without those that are NULL."""
    found: bytes = _joined(b"", data)
    return found


@scalar("CONCAT_WS(separator STRING, first STRING, [more STRING...]) -> STRING", theme=THEME, nulls=True)
@scalar("CONCAT_WS(separator BYTES, first BYTES, [more BYTES...]) -> BYTES", theme=THEME, nulls=True)
def joined(separator: Any, *texts: Any) -> Any:
    """The texts or bytes with a separator between them, without those that are NULL."""
    return None if separator is None else _joined(separator, texts)


def _joined(separator: Any, texts: Sequence[Any]) -> Any:
    present = [text for text in texts if text is not None]
    check_size(sum(map(len, present)) + len(separator) * len(present))
    return separator.join(present)


@scalar("REPLACE(text STRING, old STRING, new STRING) -> STRING", theme=THEME, is_late=True)
def replaced(text: str, old: str, new: str) -> str:
    """The text with every occurrence of a part replaced."""
    check_size(len(text) + max(len(new) - len(old), 0) * text.count(old))
    return text.replace(old, new)


@scalar("INSTR(text STRING, part STRING, [position INTEGER], [occurrence INTEGER]) -> INTEGER", theme=THEME)
def position_of(text: str, part: str, position: int = 1, occurrence: int = 1) -> int:
    """The position of a part, counted from 1; 0 if it is not there. A negative position searches from the end."""
    if position == 0 or occurrence < 1:
        return 0
    forward = position > 0
    at = position - 2 if forward else len(text) + position + 1
    for _ in range(occurrence):
        at = text.find(part, at + 1) if forward else _before(text, part, at)
        if at < 0:
            return 0
    return at + 1


def _before(text: str, part: str, at: int) -> int:
    """Return the last position before `at` where a part begins."""
    if at <= 0:
        return -1
    before = text[: at - 1 + len(part)]
    # Both reversed: Python's search from the end may take quadratic time, and texts come from records.
    found = before[::-1].find(part[::-1])
    return len(before) - found - len(part) if found >= 0 else -1


@scalar("SPLIT(text STRING, delimiter STRING) -> ARRAY<STRING>", theme=THEME)
@scalar("SPLIT(data BYTES, delimiter BYTES) -> ARRAY<BYTES>", theme=THEME)
def split(text: Any, delimiter: Any) -> list[Any]:
    """The parts between delimiters; single characters or bytes if the delimiter is empty."""
    check_size(text.count(delimiter), MOST_ITEMS)
    if delimiter:
        return text.split(delimiter)  # type: ignore[no-any-return]
    return [text] if not text else [text[at : at + 1] for at in range(len(text))]


def _not_empty(text: Any) -> None:
    if not text:
        raise ValueError("the padding, or the delimiter, is empty")


@scalar(
    "SPLIT_TO_MAP(text STRING, between_entries STRING, between_key_and_value STRING) -> MAP<STRING, STRING>",
    theme=THEME,
    constants={"between_entries": _not_empty, "between_key_and_value": _not_empty},
)
def split_to_map(text: str, entries: str, pair: str) -> dict[str, str] | None:
    """A map of the entries in a text; later ones win, parts without a value are left out."""
    if not entries or not pair:
        return None
    check_size(text.count(entries), MOST_ITEMS)
    parts = [entry.split(pair, 2) for entry in text.split(entries) if entry]
    return {part[0]: part[1] for part in parts if len(part) > 1}


def _not_negative(size: int) -> None:
    if size < 0:
        raise ValueError(f"a length below zero: {size}")


_PADDED = {"length": _not_negative, "padding": _not_empty}


def _padding(text: Any, size: int, padding: Any) -> Any:
    """Return the padding to add; None if there is no result."""
    if size < 0 or not padding:
        return None
    check_size(size)
    missing = max(size - len(text), 0)
    return (padding * (missing // len(padding) + 1))[:missing]


@scalar("LPAD(text STRING, length INTEGER, padding STRING) -> STRING", theme=THEME, constants=_PADDED, is_late=True)
@scalar("LPAD(data BYTES, length INTEGER, padding BYTES) -> BYTES", theme=THEME, constants=_PADDED, is_late=True)
def left_padded(text: Any, size: int, padding: Any) -> Any:
    """The text or bytes, padded at the left or cut off."""
    added = _padding(text, size, padding)
    return None if added is None else added + text[:size]


@scalar("RPAD(text STRING, length INTEGER, padding STRING) -> STRING", theme=THEME, constants=_PADDED, is_late=True)
@scalar("RPAD(data BYTES, length INTEGER, padding BYTES) -> BYTES", theme=THEME, constants=_PADDED, is_late=True)
def right_padded(text: Any, size: int, padding: Any) -> Any:
    """The text or bytes, padded at the right or cut off."""
    added = _padding(text, size, padding)
    return None if added is None else text[:size] + added


@scalar("CHR(code INTEGER) -> STRING", theme=THEME)
def character(code: int) -> str | None:
    """The character of a code point; NULL if there is none."""
    return chr(code) if 0 <= code <= sys.maxunicode and code not in _HALVES else None


@scalar("CHR(code STRING) -> STRING", theme=THEME)
def escaped_character(code: str) -> str | None:
    r"""The character of an escape such as `\u004b`; NULL if it is none."""
    units = re.fullmatch(r"(?:\\u[0-9a-fA-F]{4}){1,2}", code)
    if units is None:
        return None
    data = bytes.fromhex(code.replace("\\u", ""))
    try:
        text = data.decode("utf-16-be")
    except ValueError:
        # One half of a surrogate pair alone.
        return None
    return text if len(text) == 1 else None


@scalar("MD5(text STRING) -> STRING", theme=THEME)
def md5(text: str) -> str:
    """The MD5 hash in hexadecimal digits."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@scalar("UUID() -> STRING", theme=THEME, is_late=True)
def random_uuid() -> str:
    """A random UUID, different when a record is reprocessed; or the UUID of 16 given bytes."""
    return str(uuid.uuid4())


@scalar("UUID(data BYTES) -> STRING", theme=THEME)
def uuid_of(data: bytes) -> str | None:
    """A random UUID, different when a record is reprocessed; or the UUID of 16 given bytes."""
    return str(uuid.UUID(bytes=data)) if len(data) == 16 else None  # noqa: PLR2004 - the length of a UUID


@scalar("ELT(position INTEGER, first STRING, [more STRING...]) -> STRING", theme=THEME, nulls=True)
def element(position: int | None, *texts: str | None) -> str | None:
    """The text at a position, counted from 1; NULL if there is none."""
    return texts[position - 1] if position is not None and 1 <= position <= len(texts) else None


@scalar("FIELD(text STRING, first STRING, [more STRING...]) -> INTEGER", theme=THEME, nulls=True)
def field(text: str | None, *texts: str | None) -> int:
    """The position of a text among others, counted from 1; 0 if it is not there."""
    return texts.index(text) + 1 if text is not None and text in texts else 0


MASKS = "Masks"
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
        raise ValueError(f"a count of characters below zero: {count}")
    return count


_COUNT = {"count": _checked}


@scalar(f"MASK(text STRING, {_MASKS}) -> STRING", theme=MASKS, nulls=_NULLS)
def mask(text: str, *masks: str | None) -> str:
    """The text with letters, digits and other characters hidden; a mask that is NULL leaves them as they are."""
    return _masked(text, masks)


@scalar(
    f"MASK_LEFT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=MASKS,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_left(text: str, count: int, *masks: str | None) -> str:
    """The text with its first characters hidden."""
    at = _checked(count)
    return _masked(text[:at], masks) + text[at:]


@scalar(
    f"MASK_RIGHT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=MASKS,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_right(text: str, count: int, *masks: str | None) -> str:
    """The text with its last characters hidden."""
    at = max(len(text) - _checked(count), 0)
    return text[:at] + _masked(text[at:], masks)


@scalar(
    f"MASK_KEEP_LEFT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=MASKS,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_keep_left(text: str, count: int, *masks: str | None) -> str:
    """The text with all but its first characters hidden."""
    at = _checked(count)
    return text[:at] + _masked(text[at:], masks)


@scalar(
    f"MASK_KEEP_RIGHT(text STRING, count INTEGER, {_MASKS}) -> STRING",
    theme=MASKS,
    nulls=_AFTER_COUNT,
    constants=_COUNT,
)
def mask_keep_right(text: str, count: int, *masks: str | None) -> str:
    """The text with all but its last characters hidden."""
    at = max(len(text) - _checked(count), 0)
    return _masked(text[:at], masks) + text[at:]
