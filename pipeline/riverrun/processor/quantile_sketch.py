"""A sketch of many numbers that estimates quantiles with a bounded relative error (DDSketch, Masson, Rim and Lee 2019).

A number belongs to the bucket whose bounds are `base ** (n - 1)` and `base ** n`. A bucket's middle is at most `accuracy` away
from any number in it, relative to that number. So a sketch is only a count per bucket: the sketches of two sets of numbers add
up to that of both, in any order, and a number can be taken out again.

It is own code, since changelogs keep the state: a library's bytes would change with its versions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

# With an accuracy of 0.01 they span numbers of which one is 750 million times another.
MOST_BUCKETS = 1024
# The smallest float above 0.
_SMALLEST = 5e-324


class Sketch(msgspec.Struct, frozen=True):
    """Counts of numbers by bucket.

    Args:
        counts: `(bucket, count)` in ascending order of buckets, none of them 0.
        lowest: The bucket that also has all lower numbers, since there were too many buckets; None if there never were.
    """

    counts: tuple[tuple[int, int], ...] = ()
    lowest: int | None = None


class Buckets:
    """Buckets for one accuracy, in the order of their numbers: below 0 are those of negative numbers, 0 is that of 0.

    >>> buckets = Buckets(0.01)
    >>> sketch = Sketch()
    >>> for number in range(1, 1001):
    ...     sketch = buckets.moved(sketch, number, 1)
    >>> round(buckets.quantile(sketch, 0.99))
    983

    Args:
        accuracy: Greatest relative error, above 0 and below 1.
    """

    def __init__(self, accuracy: float) -> None:
        self._base = (1 + accuracy) / (1 - accuracy)
        self._log_base = math.log(self._base)
        # Makes the smallest number's bucket 1 or more: 0 and below are those of 0 and of negative numbers.
        self._offset = 1 - math.floor(math.log(_SMALLEST) / self._log_base)

    def moved(self, sketch: Sketch, number: float, by: int) -> Sketch:
        """Return a sketch with a number added (`by` is 1), or taken out (-1)."""
        bucket = self._bucket(number)
        if sketch.lowest is not None and bucket < sketch.lowest:
            bucket = sketch.lowest
        counts = sketch.counts
        at = bisect_left(counts, (bucket,))
        known = at < len(counts) and counts[at][0] == bucket
        count = by + (counts[at][1] if known else 0)
        changed = ((bucket, count),) if count > 0 else ()
        return _bounded((*counts[:at], *changed, *counts[at + known :]), sketch.lowest)

    def quantile(self, sketch: Sketch, share: float) -> float | None:
        """Return a number near the one below which a share of all numbers lies; None for an empty sketch."""
        rank = share * (sum(count for _, count in sketch.counts) - 1)
        passed = 0
        for bucket, count in sketch.counts:
            passed += count
            if passed > rank:
                return self._middle(bucket)
        return None

    def _bucket(self, number: float) -> int:
        if not number:
            return 0
        bucket = math.ceil(math.log(abs(number)) / self._log_base) + self._offset
        return bucket if number > 0 else -bucket

    def _middle(self, bucket: int) -> float:
        if not bucket:
            return 0.0
        # Of the greatest buckets the upper bound is infinite, but not the middle.
        power = math.exp((abs(bucket) - self._offset) * self._log_base + math.log(2 / (1 + self._base)))
        return math.copysign(power, bucket)


def merged(first: Sketch, second: Sketch) -> Sketch:
    """Return the sketch of the numbers of both."""
    known = [each for each in (first.lowest, second.lowest) if each is not None]
    lowest = max(known) if known else None
    return _bounded(tuple(_added(first.counts, second.counts, lowest)), lowest)


def _added(
    first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...], lowest: int | None
) -> Iterator[tuple[int, int]]:
    counts = dict[int, int]()
    for bucket, count in (*first, *second):
        at = bucket if lowest is None or bucket > lowest else lowest
        counts[at] = counts.get(at, 0) + count
    yield from sorted(counts.items())


def _bounded(counts: tuple[tuple[int, int], ...], lowest: int | None) -> Sketch:
    """Return a sketch whose lowest buckets become one if there are too many."""
    # The lowest ones, because high quantiles are asked for: they stay exact.
    more = len(counts) - MOST_BUCKETS
    if more > 0:
        lowest = counts[more][0]
        counts = ((lowest, sum(count for _, count in counts[: more + 1])), *counts[more + 1 :])
    return Sketch(counts, lowest)
