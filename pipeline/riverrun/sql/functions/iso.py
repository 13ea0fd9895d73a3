"""Dates and times as ISO 8601 writes them."""

from __future__ import annotations

import datetime as dt

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DAY = 86_400_000
"""Milliseconds of a day."""


def iso_date(days: int) -> str:
    """Return a date as text.

    >>> iso_date(18911)
    '2021-10-11'
    """
    return (EPOCH + dt.timedelta(days=days)).date().isoformat()


def iso_time(milliseconds: int) -> str:
    """Return a time as text; seconds and milliseconds only if they are not zero.

    >>> iso_time(48_300_000), iso_time(48_300_005)
    ('13:25', '13:25:00.005')
    """
    seconds, rest = divmod(milliseconds, 1000)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    if second or rest:
        text += f":{second:02}"
    return f"{text}.{rest:03}" if rest else text


def iso_timestamp(milliseconds: int) -> str:
    """Return a point in time as text, in UTC, with milliseconds.

    >>> iso_timestamp(1_625_055_519_446)
    '2021-06-30T12:18:39.446'
    """
    moment = EPOCH + dt.timedelta(milliseconds=milliseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
