"""Reads pages of a topic's records for display. Each page is limited in records, bytes and time."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS, as_exception
from riverrun.kafka.ranges import read_fields
from riverrun.records import RAW_KEY, RAW_OFFSET, RAW_VALUE, OffsetRange, OffsetVector
from riverrun.serde.api import shown_reader
from riverrun.topics.serdes import jsonable, readable

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from riverrun.records import RawFields, TopicPartition
    from riverrun.serde.api import Serde
    from riverrun.topics.records import TopicReader

NEWEST = "newest"
"""Start of a page with the newest records."""
_MOST_SHOWN_BYTES = 1024 * 1024
"""Size above which a key or a value is not decoded: only its first bytes are shown."""
_FIRST_BYTES = 500
_LONGEST_PROBLEM = 300
_LOOKS_APART = 100
"""Number of records between two checks of the time."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Limits of a page, whatever it contains.

    Args:
        looked_at: Maximum number of records to read, of which a filter may choose few.
        read_bytes: Size of keys and values after which the page ends.
        seconds: Time after which it ends, s.
    """

    looked_at: int = 10_000
    read_bytes: int = 8 * 1024 * 1024
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Records of a topic, by time.

    Args:
        records: The records as JSON shows them.
        next: Start of the next page; after the newest records it is the end of the topic.
        looked_at: Number of records that were read.
        is_end: Whether it reaches the end of the topic.
    """

    records: tuple[Mapping[str, Any], ...]
    next: OffsetVector
    looked_at: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class TopicPager:
    """Reads pages of a topic."""

    reader: TopicReader
    limits: PageLimits = field(default_factory=PageLimits)

    def page(self, start: str, most: int, text: str = "") -> TopicPage:
        """Return a page of committed records.

        Args:
            start: `NEWEST` for the last ones, or a bound of `TopicReader.bounds`.
            most: Maximum number of records.
            text: A text that the key or the value must contain in readable form; empty for all records.
        """
        ranges = self._ranges(start, most, text)
        is_newest = start == NEWEST
        found: list[dict[str, Any]] = []
        position = {tp: wanted.start for tp, wanted in ranges.items()}
        looked_at = 0
        until, left_bytes = time.monotonic() + self.limits.seconds, self.limits.read_bytes
        # Closed at once after a break, and not when the generator is collected: it has a consumer open.
        with closing(self._records(ranges)) as records:
            for tp, fields in records:
                looked_at += 1
                position[tp] = fields[RAW_OFFSET] + 1
                left_bytes -= len(fields[RAW_KEY] or b"") + len(fields[RAW_VALUE] or b"")
                shown = self._shown(tp, fields)
                if text in shown.pop("text"):
                    found.append(shown)
                is_full = len(found) >= most and not is_newest
                is_late = looked_at % _LOOKS_APART == 0 and time.monotonic() > until
                if is_full or is_late or left_bytes < 0 or looked_at >= self.limits.looked_at:
                    break
            # All was read. Markers of transactions may follow the last record, so its offset is not enough.
            else:
                position = {tp: wanted.end for tp, wanted in ranges.items()}
        is_end = all(position[tp] >= wanted.end for tp, wanted in ranges.items())
        if is_newest:
            position = {tp: wanted.end for tp, wanted in ranges.items()}
        ordered = sorted(found, key=lambda shown: (shown["timestamp"], shown["partition"], shown["offset"]))
        return TopicPage(tuple(ordered[-most:]), OffsetVector(position), looked_at, is_end)

    def _ranges(self, start: str, most: int, text: str) -> Mapping[TopicPartition, OffsetRange]:
        first, last = self.reader.bounds("earliest"), self.reader.bounds("latest")
        if start == NEWEST:
            # Markers of transactions have offsets as well, so `most` records take more offsets.
            records = self.limits.looked_at if text else 2 * most
            share = max(records // max(len(last), 1), 1)
            begin: Mapping[TopicPartition, int] = {tp: end - share for tp, end in last.items()}
        else:
            begin = self.reader.bounds(start)
        begin = {tp: min(max(offset, first[tp]), last[tp]) for tp, offset in begin.items()}
        return {tp: OffsetRange(begin[tp], last[tp]) for tp in sorted(last)}

    def _records(
        self, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> Generator[tuple[TopicPartition, RawFields], None, None]:
        for tp, batch in read_fields(self.reader.admin, ranges):
            for fields in batch:
                yield tp, fields

    def _shown(self, tp: TopicPartition, fields: RawFields) -> dict[str, Any]:
        key, value, timestamp, offset, headers = fields
        shown_key, key_text, key_problem = _decoded(self.reader.key_serde, key)
        shown_value, value_text, value_problem = _decoded(self.reader.value_serde, value)
        return {
            "partition": tp.partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": shown_key,
            "value": shown_value,
            "headers": [[name, None if data is None else _header(data)] for name, data in headers],
            "problems": {"key": key_problem, "value": value_problem},
            "text": f"{key_text}\n{value_text}",
        }


def _decoded(serde: Serde[Any], data: bytes | None) -> tuple[Any, str, str | None]:
    """Return a key or a value for JSON, as text for the filter, and the reason if it is shown as bytes."""
    if data is None:
        return None, "null", None
    if len(data) > _MOST_SHOWN_BYTES:
        return data[:_FIRST_BYTES].hex(), "", f"{len(data):,} bytes are too many to show: these are the first"
    try:
        value = shown_reader(serde)(data)
        return jsonable(value), readable(value), None
    except USER_ERRORS as error:  # a serde may raise anything, and topics have what it cannot read
        problem = f"not read by serde {serde.name}: {type(error).__name__}: {as_exception(error)}"
        return data[:_FIRST_BYTES].hex(), data.decode(errors="replace"), problem[:_LONGEST_PROBLEM]


def _header(data: bytes) -> str:
    """Return the beginning of a header's value, as text if it is UTF-8, else in hexadecimal digits."""
    try:
        return data[:_FIRST_BYTES].decode()
    except UnicodeDecodeError:
        return f"0x{data[:_FIRST_BYTES].hex()}"
