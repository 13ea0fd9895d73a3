"""Checks cron expressions when the file is read, rather than when Airflow first parses them."""

from __future__ import annotations

import re

PRESETS = frozenset(
    f"@{name}"
    for name in (
        "once",
        "continuous",
        "hourly",
        "daily",
        "midnight",
        "weekly",
        "monthly",
        "quarterly",
        "yearly",
        "annually",
    )
)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _DAYS),
    ("second", 0, 59, {}),
)
_LEAST = 5
_PART = re.compile(r"(?P<first>\*|\w+)(-(?P<last>\w+))?(/(?P<step>\d+))?")
_SPECIAL = re.compile(r"\?|L|L?\w{1,3}#?[1-5]?")
"""Extensions that Airflow understands and cron lacks: the last day, the last or the second Monday."""


def wrong_in(schedule: str) -> str | None:
    """Return what is wrong with a cron expression; None if it is valid.

    >>> wrong_in("0 */6 * * mon-fri")
    >>> wrong_in("0 25 * * *")
    'its hour, 25, is not in 0-23'

    Args:
        schedule: Five fields, six with seconds at the end, or a preset such as `@daily`.
    """
    if schedule.startswith("@"):
        return None if schedule in PRESETS else f"there is no {schedule}"
    fields = schedule.split()
    if not _LEAST <= len(fields) <= len(_FIELDS):
        return f"it has {len(fields)} fields"
    for text, field in zip(fields, _FIELDS, strict=False):
        for part in text.split(","):
            wrong = _wrong_part(part, *field)
            if wrong is not None:
                return wrong
    return None


def _wrong_part(part: str, name: str, lowest: int, highest: int, names: dict[str, int]) -> str | None:
    match = _PART.fullmatch(part)
    if match is None or not match["first"]:
        return None if name in {"day", "weekday"} and _SPECIAL.fullmatch(part) else f"its {name}, {part}, is not valid"
    if match["step"] is not None and int(match["step"]) == 0:
        return f"its {name}, {part}, has steps of 0"
    for bound in (match["first"], match["last"]):
        if (
            bound is None
            or bound == "*"
            or bound.lower() in names
            or (name in {"day", "weekday"} and bound in {"L", "l"})
        ):
            continue
        if not bound.isdecimal() or not lowest <= int(bound) <= highest:
            return f"its {name}, {bound}, is not in {lowest}-{highest}"
    return None
