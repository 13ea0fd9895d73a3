"""Parts of an output in which the live version has rows and a candidate has none: windows, days of event time, partitions."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from riverrun.quality.gate import Verdict, are_accidents, is_accident
from riverrun.records import counted
from riverrun.releases.scope import moment_text
from riverrun.serde.windowed import length_of_windows, start_of_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.releases.difference import Pair
    from riverrun.topology.nodes import SinkNode

_DAY_MS = 86_400_000
# Bounds the memory: with more windows or days, two neighbours count as one.
_MOST_INTERVALS = 100_000
_SHOWN = 3
# Of all rows: if fewer are left, no part is said to have lost its rows because others did.
_LEAST = 0.1
# Of the rows that parts usually have: fewer in all lost parts are worth a note, and no approval.
_FEW = 0.01


class EmptiedParts:
    """Counts the rows of both versions by interval and partition while a gate reads them.

    Intervals are windows with equal lengths in both versions; for other keys, such as sessions, they are days of event time.
    """

    def __init__(self, topic: str, old: SinkNode, new: SinkNode) -> None:
        length = length_of_windows(new.key_serde)
        self._has_windows = length is not None and length_of_windows(old.key_serde) == length
        self._topic = topic
        self._width_ms = 1 if self._has_windows else _DAY_MS
        self._old, self._new = Counter[int](), Counter[int]()
        self._old_partitions, self._new_partitions = Counter[int](), Counter[int]()

    def counted(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Return the pairs unchanged, and count their rows."""
        for pair in pairs:
            start = self._start(pair)
            for row, starts, partitions in (
                (pair.old, self._old, self._old_partitions),
                (pair.new, self._new, self._new_partitions),
            ):
                if row is not None:
                    starts[start] += 1
                    partitions[pair.partition] += 1
            if len(self._old) + len(self._new) > _MOST_INTERVALS:
                self._width_ms *= 2
                self._old, self._new = self._widened(self._old), self._widened(self._new)
            yield pair

    def verdict(self, *, is_whole: bool = True) -> Verdict:
        """Return a warning for windows or days, and one for partitions, that have lost all their rows."""
        # A repair covers few rows, which may well be the only ones of a day or of a partition.
        found = Verdict({})
        if is_whole or self._has_windows:
            found += emptied(self._topic, "interval", self._old, self._new, self._named)
        if is_whole:
            found += emptied_partitions(self._topic, self._old_partitions, self._new_partitions)
        return found

    def _start(self, pair: Pair) -> int:
        # Both rows at the time of the old one: a candidate that stamps rows as it writes them has lost none of them.
        row = pair.old or pair.new
        time_ms = start_of_window(pair.key) if self._has_windows or row is None else row.timestamp
        return time_ms - time_ms % self._width_ms

    def _widened(self, counts: Mapping[int, int]) -> Counter[int]:
        found = Counter[int]()
        for start, count in counts.items():
            found[start - start % self._width_ms] += count
        return found

    def _named(self, start: int) -> str:
        if self._width_ms == 1:
            return f"the window from {_text(start)}"
        return f"{_text(start)} to {_text(start + self._width_ms)}"


def emptied_partitions(topic: str, old: Mapping[int, int], new: Mapping[int, int]) -> Verdict:
    """Return a warning if the live version has rows in partitions in which a candidate has none, which has some in others."""
    return emptied(topic, "partition", old, new, _named_partition)


def emptied_log(topic: str, old: Mapping[int, int], new: Mapping[int, int]) -> Verdict:
    """As `emptied_partitions`, for logs, of which the numbers of offsets are known: markers and aborted records have some."""
    lost = _lost(old, new)
    return _verdict(f"{topic}: each partition has records", "partition", old, lost, _named_partition, unit="offset")


def emptied(
    topic: str, kind: str, old: Mapping[int, int], new: Mapping[int, int], named: Callable[[int], str]
) -> Verdict:
    """Return a warning that names the parts in which only the live version has rows; none if the other parts explain it."""
    lost = _unexplained(old, new, _lost(old, new))
    return _verdict(f"{topic}: each {kind} has rows", kind, old, lost, named, unit="row")


def _lost(old: Mapping[int, int], new: Mapping[int, int]) -> list[int]:
    # An output that is empty as a whole is a finding by itself.
    return sorted(part for part, rows in old.items() if rows > 0 and not new.get(part)) if any(new.values()) else []


def _unexplained(old: Mapping[int, int], new: Mapping[int, int], lost: list[int]) -> list[int]:
    left = [(old[part], min(old[part], rows)) for part, rows in new.items() if old.get(part, 0) > 0 and rows]
    if sum(rows for _, rows in left) < _LEAST * sum(old.values()):
        return lost
    # Seen from each row that is left, the share of the others of its part that are not. The plain share in parts that have
    # rows left would be too low: it leaves out the unlucky parts.
    others = sum(rows * (count - 1) for count, rows in left)
    share = sum(rows * (count - rows) for count, rows in left) / others if others else 0.0
    if not are_accidents(len(lost), sum(share**count for count in old.values() if count > 0)):
        return lost
    return [part for part in lost if not is_accident(share, old[part])]


def _verdict(
    name: str, kind: str, old: Mapping[int, int], lost: list[int], named: Callable[[int], str], *, unit: str
) -> Verdict:
    if not lost:
        return Verdict({})
    told = "; ".join(f"none in {named(part)}, the live version {old[part]:,}" for part in lost[:_SHOWN])
    more = f"; and so in {counted(len(lost) - _SHOWN, f'further {kind}')}" if len(lost) > _SHOWN else ""
    total = sum(old[part] for part in lost)
    found = f"{counted(total, unit)} lost in {counted(len(lost), kind)}: {told}{more}"
    others = old.keys() - set(lost)
    usual = median([old[part] for part in others if old[part] > 0] or [0])
    if total < _FEW * usual:
        return Verdict({name: f"noted: {found}. Others have {usual:,.0f}"})
    return Verdict({name: f"failed: {found}"}, warnings=(name,))


def _named_partition(number: int) -> str:
    return f"partition {number}"


def _text(time_ms: int) -> str:
    try:
        return moment_text(time_ms)
    # Python has no times after the year 9999.
    except (OverflowError, ValueError):
        return f"{time_ms} ms"
