"""Checks shared by all sections of `streams.toml`."""

from __future__ import annotations

import codecs
import difflib
import re
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from riverrun.config.secrets import is_secret
from riverrun.errors import ConfigError

_LONGEST = 100
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_FIELDS = 5, 6
_PRESETS = frozenset(
    "@once @continuous @hourly @daily @midnight @weekly @monthly @quarterly @yearly @annually".split()  # noqa: SIM905
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def check_keys(path: Path, where: str, table: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Check that a table has no unknown keys; `where` names the table, and is empty for the whole file."""
    known = list(keys)
    for key in table:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {f'{where}.' if where else ''}{key}", hint=choices(key, known))


_IN_TOML: Mapping[type, str] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    list: "an array",
    str: "a string",
}
"""Types in TOML's terms."""


def check_type(path: Path | str, where: str, value: Any, expected: type, *, hint: str | None = None) -> None:
    """Check the type of a value, one of `bool`, `dict`, `float`, `int`, `list` and `str`."""
    # In Python, True is an int; in TOML it is no number.
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        message = (
            f"{path}: {where} is {kind_of(value) if is_secret(where) else _as_in_toml(value)}, not {_IN_TOML[expected]}"
        )
        raise ConfigError(message, hint=hint)


def _as_in_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return kind_of(value)
    text = str(value) if isinstance(value, date | time) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def kind_of(value: object) -> str:
    """Return the kind of a value, in the words of TOML.

    >>> kind_of([1, 2]), kind_of(date(2026, 1, 1))
    ('an array', 'a date or time')
    """
    return _IN_TOML.get(type(value), "a date or time" if isinstance(value, date | time) else "another value")


def check_path(where: str, value: object) -> None:
    """Check that a text can be the path of a file: the system accepts no NUL."""
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where} has a NUL character")


def read_text(path: Path) -> str:
    """Return the text of a user's file: UTF-8, with or without the byte order mark that editors on Windows write."""
    check_path("The path of a file", str(path))
    # Not read_text(): Python would use the encoding of the machine.
    raw = path.read_bytes()
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{path} is encoded as UTF-16", hint="Save it as UTF-8.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path} is not text in UTF-8: line {line} has the byte {error.object[error.start]:#04x}"
        raise ConfigError(message, hint="Save it as UTF-8.") from error


def expanded_user(where: str, text: str) -> Path:
    """Return a path in which a leading `~` is a user's home directory."""
    try:
        return Path(text).expanduser()
    # pathlib raises it for a user that does not exist.
    except RuntimeError as error:
        raise ConfigError(f"{where} is {text!r}: {error}", hint="Write the path out.") from error


def wrong_in_schedule(schedule: str) -> str | None:
    """Return what is wrong with a schedule of Airflow's; None if it is valid.

    >>> wrong_in_schedule("0 */6 * * mon-fri")
    >>> wrong_in_schedule("0 0 31 2 *")
    'there is no such date'
    """
    from croniter import CroniterBadDateError, CroniterError, croniter  # noqa: PLC0415 - a quarter of a second

    if schedule.startswith("@"):
        return None if schedule in _PRESETS else f"there is no {schedule}"
    if len(schedule.split()) not in _FIELDS:
        return f"it has {len(schedule.split())} fields"
    try:
        croniter(schedule, 0.0).get_next()
    except CroniterBadDateError:
        return "there is no such date"
    except (CroniterError, ValueError, OverflowError) as error:
        return str(error)
    return None


def check_schedule(where: str, schedule: str) -> None:
    """Check a schedule of Airflow's; `where` names its key, for messages."""
    wrong = wrong_in_schedule(schedule.strip())
    if wrong is not None:
        message = f"{where} is {schedule!r}, not a cron expression: {wrong}"
        raise ConfigError(message, hint='Minute, hour, day, month and weekday: "0 */6 * * *" is every six hours.')


def check_zone(where: str, zone: str) -> None:
    """Check the name of a time zone; `where` names its key, for messages."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        message = f"{where} is {zone!r}, and this machine knows no such time zone"
        raise ConfigError(message, hint="For example Europe/Berlin, or UTC.") from error


def check_name(path: Path, kind: str, name: str) -> None:
    """Check the name of an export or an archive; `kind` says which, for messages."""
    if not _NAME.fullmatch(name):
        message = f"{path}: the name of {kind} {name!r} has characters other than a-z A-Z 0-9 . _ -, or more than 100"
        raise ConfigError(message)


def not_empty(where: str, value: str) -> str:
    """Return a place that is not empty once variables are replaced; `where` names its key, for messages."""
    if not value.strip():
        raise ConfigError(f"{where} is empty", hint="Is a variable in it empty? Name a place.")
    return value


def check_number(where: str, value: Any, lowest: int, highest: int) -> None:
    """Check that a value is a whole number within bounds (inclusive); `where` names the parameter, for messages."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        message = f"{where} is {value!r}, and must be a whole number of at least {lowest}, and at most {highest}"
        raise ConfigError(message)


def check_values(
    path: Path,
    where: str,
    table: Mapping[str, Any],
    *,
    texts: Iterable[str],
    choices: Mapping[str, Sequence[str]],
    numbers: Mapping[str, tuple[int, int]],
    lists: Iterable[str],
) -> None:
    """Check the types of a table's values; numbers by their bounds, choices (texts, too) by the values that they may have."""
    for key in (*texts, *choices):
        check_type(path, f"{where}.{key}", table.get(key, ""), str)
        check_path(f"{path}: {where}.{key}", table.get(key, ""))
    for key, allowed in choices.items():
        if key in table and table[key] not in allowed:
            raise ConfigError(f"{path}: {where}.{key} is {table[key]!r}", hint=f"Allowed: {', '.join(allowed)}.")
    for key, bounds in numbers.items():
        if key in table:
            check_number(f"{path}: {where}.{key}", table[key], *bounds)
    for key in lists:
        check_type(path, f"{where}.{key}", table.get(key, []), list)
        for value in table.get(key, []):
            check_type(path, f"{where}.{key}", value, str)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the nearest known word, or else all of them."""
    names = sorted({name for name in known if not name.startswith("_")})
    close = difflib.get_close_matches(word, names, 1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names) or 'none'}"


def choices(word: str, known: Iterable[str]) -> str:
    """Return a hint for a word that is not allowed: all that are, and the nearest one."""
    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(word, names, 1)
    return f"Allowed: {', '.join(names)}." + (f" Did you mean {close[0]!r}?" if close else "")
