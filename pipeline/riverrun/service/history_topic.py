"""Keeps the past of instances in a topic (`history.topic`), beyond the hour in memory and after restarts.

An instance writes a record per minute: its figures in that minute, and events. Nothing of that may hurt it: what cannot
be written is lost, with a line in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Response

from riverrun.decoders import json_decoder
from riverrun.errors import StreamsError
from riverrun.hosting.process import SystemClock
from riverrun.intervals import repeating
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_fields
from riverrun.records import OffsetRange, TopicPartition
from riverrun.service.admission import refused
from riverrun.service.answering import as_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from riverrun.records import RawFields
    from riverrun.service.history import History
    from riverrun.service.metrics import MeasuredInstance

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
MOST_HOURS = 24 * 31
"""Longest stretch that is read at once, hours."""
_KEPT = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3_600_000)}
"""Settings of the topic if an instance creates it."""
# More than a chart has columns.
_MOST_POINTS = 1500
# Of one answer. The topic is shared: records of other instances are read too, and count.
_MOST_BYTES, _MOST_SECONDS = 64 * 1024 * 1024, 10.0
# Their highest value stands for a stretch of time: an average would hide a short peak. Of other series the average does.
_PEAKS = frozenset({"lag", "latency_ms", "commit_ms", "copies_lag"})
_PRODUCER = {"message.timeout.ms": "60000"}


class Minute(NamedTuple):
    """The past of an instance in a minute, as a record has it.

    Args:
        at: Its end, ms since the epoch.
        figures: A number for each series that was known.
        events: Events in it: `at` and `text`.
    """

    at: int
    figures: dict[str, float]
    events: list[dict[str, Any]]


_read_minute: Callable[[bytes], Minute] = json_decoder(Minute).decode


class HistoryTopic:
    """The topic of an instance's past. Instances and applications may share it: keys distinguish their records."""

    def __init__(self, instance: MeasuredInstance) -> None:
        self.topic = instance.application.config.streams.history_topic
        self._kafka = instance.application.kafka
        self._key = f"{instance.application.config.name}/{instance.id}".encode()
        self._clock = SystemClock()
        self._is_broken = False

    @contextmanager
    def kept(self, history: History, every_s: float = MINUTE_MS / 1000) -> Iterator[None]:
        """Write the past of each minute within this context."""
        written = self._clock.now_ms()

        def write_past() -> None:
            nonlocal written
            past = history.since(written)
            written = past["looked_at"]
            self.write(past)

        # Without a wait: a broker that does not answer must not keep the process from ending.
        with repeating(write_past, every_s, "history", last_s=0):
            yield

    def write(self, past: Mapping[str, Any]) -> None:
        """Write a stretch of the past (`History.since`) as one record. A failure is logged, once until it works again."""
        figures = {name: folded(name, values) for name, values in past["series"].items()}
        known = {name: value for name, value in figures.items() if value is not None}
        minute = Minute(past["looked_at"], known, past["events"])
        try:
            self._producer.send(self.topic, self._key, msgspec.json.encode(minute), minute.at, (), None)
            self._producer.flush()
        except Exception as error:  # noqa: BLE001 - whatever it is: the instance works without
            if not self._is_broken:
                log.warning("the history of this instance is not written to %s for now: %s", self.topic, error)
            self._is_broken = True
            # A librdkafka producer does not recover from a fatal error: the next minute gets another one.
            self.__dict__.pop("_producer", None)
        else:
            self._is_broken = False

    def read(self, hours: int) -> dict[str, Any]:
        """Return the past of the last hours, in the form of `History.since`, without failures.

        `is_complete` tells whether all of it was read: there are limits of bytes and time.
        """
        now_ms = self._clock.now_ms()
        read = _Read(self._key)
        is_complete = read.all_of(self._batches(now_ms - hours * 3_600_000))
        minutes = sorted(read.minutes, key=lambda minute: minute.at)
        parts = _parts(minutes, ceil(len(minutes) / _MOST_POINTS) or 1)
        names = dict.fromkeys(name for minute in minutes for name in minute.figures)
        return {
            "looked_at": now_ms,
            "every_ms": MINUTE_MS * (ceil(len(minutes) / _MOST_POINTS) or 1),
            "kept_ms": hours * 3_600_000,
            "at": [part[-1].at for part in parts],
            "series": {
                name: [folded(name, [each.figures.get(name) for each in part]) for part in parts] for name in names
            },
            "events": [event for minute in minutes for event in minute.events],
            "is_complete": is_complete,
        }

    @cached_property
    def _producer(self) -> IdempotentProducer:
        admin = Admin(self._kafka)
        if not admin.partitions([self.topic]):
            admin.create_topics([TopicSpec(self.topic, 1, _KEPT)])
            log.info("created %s, which keeps the history of instances for a week (retention.ms)", self.topic)
        return IdempotentProducer(self._kafka, _PRODUCER)

    def _batches(self, since_ms: int) -> Iterator[list[RawFields]]:
        admin = Admin(self._kafka)
        partitions = admin.partitions([self.topic]).get(self.topic, 0)
        tps = [TopicPartition(self.topic, number) for number in range(partitions)]
        starts, ends = admin.offsets_for_time(tps, since_ms), admin.end_offsets(tps)
        for _, batch in read_fields(admin, {tp: OffsetRange(starts[tp], max(ends[tp], starts[tp])) for tp in tps}):
            yield batch


@asynccontextmanager
async def kept(history: History, topic: HistoryTopic | None) -> AsyncIterator[None]:
    """Keep the past within this context: in memory and, if there is one, in a topic."""
    async with history.kept():
        with nullcontext() if topic is None else topic.kept(history):
            yield


def past_router(history: History, topic: HistoryTopic | None) -> APIRouter:
    """Return the requests for the past of an instance: of the last hour, and what a topic has of it."""
    router, reading = APIRouter(), threading.Semaphore(1)

    @router.get("/history")
    def past(
        since: Annotated[int, Query(ge=0, description="Only later figures, events and failures: `looked_at`, ms.")] = 0,
    ) -> Response:
        """Return figures, events, and failures with their records, of the last hour of this instance."""
        return as_json(history.since(since) | {"has_topic": topic is not None})

    @router.get("/history/kept")
    def kept_past(
        hours: Annotated[int, Query(ge=1, le=MOST_HOURS, description="How far back, hours.")] = 24,
    ) -> Response:
        """Return figures and events of this instance that `history.topic` keeps, also of before it was restarted."""
        if topic is None:
            return refused("no-history-topic", "history.topic is not set: only the last hour is kept", 404)
        if not reading.acquire(blocking=False):
            return refused("busy", "The past is being read: try again", 503)
        try:
            return as_json(topic.read(hours))
        except StreamsError as error:
            return refused("not-read", f"The past cannot be read from {topic.topic}: {error.message}", 503)
        finally:
            reading.release()

    return router


class _Read:
    """Minutes of one instance, as they are read."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.minutes: list[Minute] = []

    def all_of(self, batches: Iterator[list[RawFields]]) -> bool:
        """Read batches of records. Returns False if a limit ends that."""
        until, left = time.monotonic() + _MOST_SECONDS, _MOST_BYTES
        for batch in batches:
            for key, value, *_ in batch:
                left -= len(value or b"")
                if key == self._key and value is not None:
                    self._add(value)
            if left < 0 or time.monotonic() > until:
                return False
        return True

    def _add(self, value: bytes) -> None:
        try:
            self.minutes.append(_read_minute(value))
        except msgspec.MsgspecError:
            log.debug("a record of the history cannot be read: %r", value[:100])


def folded(name: str, values: Sequence[float | None]) -> float | None:
    """Return the number that stands for a series in a stretch of time: its highest or its average; None if none is known.

    >>> folded("lag", [1, None, 5]), folded("rate", [1, None, 5]), folded("rate", [None])
    (5, 3.0, None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if name in _PEAKS else round(sum(known) / len(known), 3)


def _parts(minutes: Sequence[Minute], size: int) -> list[Sequence[Minute]]:
    return [minutes[at : at + size] for at in range(0, len(minutes), size)]
