"""Records that come at a steady rate, and how long each of them waits until a count with it in it is published."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from inputs import MINUTE_MS, page_views, window_key
from measuring import percentile
from published import PublishedCounts

from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from tests.repeating import Repeating

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from inputs import Input
    from measuring import Figures
    from models import PageView

IN_TIME_S = 5.0
"""Records that wait longer are not published in time."""
DRAINED_S = 60.0
"""So long after the last record a side is waited for."""
_STEP_SECONDS = 0.005
_READ_SECONDS = 0.02
_LEFT_SECONDS = 30.0
_UNLIMITED = 2**62
_PROMPT = {"linger.ms": "2"}


class Waiting:
    """Records that are produced in one thread, and published in another one: each window's in the order in which they came.

    Args:
        counted: How many records of a window came before, by the window's key.
    """

    def __init__(self, counted: Mapping[bytes, int]) -> None:
        self._published = dict(counted)
        self._before = counted
        self._sent: dict[bytes, list[float]] = {}
        self._waited: list[tuple[float, float]] = []

    def produced(self, key: bytes, at_s: float) -> None:
        """Take in a record of a window, before it is produced."""
        self._sent.setdefault(key, []).append(at_s)

    def published(self, key: bytes, count: int, at_s: float) -> None:
        """Take in a published count: so many records of the window are in it. Earlier and repeated ones change nothing."""
        sent, before, done = self._sent.get(key, []), self._before.get(key, 0), self._published.get(key, 0)
        if count > done:
            self._waited += [(at, at_s - at) for at in sent[done - before : count - before]]
            self._published[key] = count

    def is_over(self) -> bool:
        """Whether every record is published."""
        return len(self._waited) == sum(map(len, self._sent.values()))

    def figures(self, begin_s: float, end_s: float, until_s: float) -> Figures:
        """Return the figures of the records that were produced within a time.

        Args:
            begin_s: When that began.
            end_s: When it ended.
            until_s: When nobody looked any more: those that were not published count with the time until then.
        """
        waits = sorted(waited for at, waited in [*self._waited, *self._left(until_s)] if begin_s <= at < end_s)
        return {
            "produced": len(waits) / (end_s - begin_s),
            "in time": 100 * sum(waited <= IN_TIME_S for waited in waits) / len(waits),
            "p50": percentile(waits, 50) * 1000,
            "p99": percentile(waits, 99) * 1000,
        }

    def _left(self, until_s: float) -> Iterator[tuple[float, float]]:
        for key, sent in self._sent.items():
            done = self._published.get(key, 0) - self._before.get(key, 0)
            yield from ((at, until_s - at) for at in sent[done:])


class Steady:
    """Produces records at a rate, and tells when each of them comes.

    Args:
        source: The input, which grows.
        producer: Writes to it.
        per_second: How many records come in a second.
        waiting: Is told of them.
    """

    def __init__(self, source: Input, producer: IdempotentProducer, per_second: int, waiting: Waiting) -> None:
        self._source, self._producer, self._per_second = source, producer, per_second
        self.waiting = waiting
        self._key = cache(window_key)

    def feed(self, seconds: float) -> tuple[float, float]:
        """Produce for so long, as evenly as the machine allows, and return when that began and ended."""
        views, sent, began_s = page_views(self._source, self._source.records, _UNLIMITED), 0, time.time()
        while (passed_s := time.time() - began_s) < seconds:
            due = int(passed_s * self._per_second)
            for view in islice(views, due - sent):
                self._produce(view)
            sent = due
            time.sleep(_STEP_SECONDS)
        self._source.records += sent
        return began_s, time.time()

    def settle(self) -> None:
        """Wait until all is published, of a side that has committed all.

        Raises:
            RuntimeError: If that takes too long.
        """
        self._producer.flush()
        end = time.monotonic() + _LEFT_SECONDS
        while not self.waiting.is_over():
            if time.monotonic() > end:
                message = f"Records are not published {_LEFT_SECONDS:.0f} s after they were committed"
                raise RuntimeError(message)
            time.sleep(_READ_SECONDS)

    def _produce(self, view: PageView) -> None:
        source, (n, user, _, page, millis, ok) = self._source, view
        at_s = time.time()
        timestamp = int(at_s * 1000)
        window = user, timestamp // MINUTE_MS * MINUTE_MS
        self.waiting.produced(self._key(*window), at_s)
        value = source.serialize({"id": n, "user": user, "page": page, "millis": millis, "ok": ok})
        self._producer.send(source.views, user.encode(), value, timestamp, (), None)
        source.windows[window] += 1


@contextmanager
def steady(source: Input, kafka: Mapping[str, str], side: str, target: str, per_second: int) -> Iterator[Steady]:
    """Read a side's output while the block runs.

    Args:
        source: Its input, of which everything is published.
        kafka: Client properties.
        side: The side.
        target: The topic of its output.
        per_second: How many records are to come in a second.
    """
    waiting = Waiting({window_key(*window): count for window, count in source.windows.items()})
    producer = IdempotentProducer(Kafka(kafka), _PROMPT)
    with closing(producer), closing(PublishedCounts(kafka, side, source.partitions_of(target))) as counts:

        def look() -> None:
            found, now_s = counts.read(_READ_SECONDS), time.time()
            for key, count in found:
                waiting.published(key, count, now_s)

        with Repeating(look, 0):
            yield Steady(source, producer, per_second, waiting)
