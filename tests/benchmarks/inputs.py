"""The inputs, and what must come out of each topology."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import models
import msgspec
from formats import format_of
from rows import JSON, PARTITIONS

from riverrun import STRING, Window, Windowed, windowed
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import TopicPartition
from riverrun.serde.api import SerdePlace, placed
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from models import PageView

    from riverrun.kafka.admin import Admin

PAGES = 500
COUNTRIES = 20
MINUTE_MS = 60_000

MODELLED = ("stateless", "join", "session-count", "stream-join", "foreign-key-join", "suppress")
"""Topologies whose outputs `models` computes."""

Updated = tuple[bytes | None, bytes | None]
"""A key and its value."""
Output = list[Updated]
"""Keys and values, sorted: of a table the last value of every key, else every record."""


@dataclass
class Input:
    """Topics with records, and what comes out of each topology.

    Tables that may grow while they are measured are computed as the input is made.

    Args:
        keys: How many users there are.
        name: What its topics are called by.
        start_ms: Event time of the first page view.
        records: How many page views there are.
        serialize: Writes the fields of a page view.
        partitions: How many each of its topics has.
    """

    keys: int
    name: str
    start_ms: int
    records: int = 0
    windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)
    modelled: dict[str, Output] = field(default_factory=dict)
    serialize: Callable[[dict[str, Any]], bytes] = msgspec.json.encode
    partitions: int = PARTITIONS

    @property
    def views(self) -> str:
        """The topic of page views."""
        return f"views-{self.name}"

    @property
    def users(self) -> str:
        """The topic of users, for the join."""
        return f"users-{self.name}"

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic that has as many as the input."""
        return [TopicPartition(topic, n) for n in range(self.partitions)]

    def expected(self, topology: str) -> Output:
        """The results of a topology; rows of `models` are computed when they are first asked for."""
        if topology in MODELLED:
            if topology not in self.modelled:
                self.modelled[topology] = self._model(topology)
            return self.modelled[topology]
        if topology.startswith("windowed-count"):
            return sorted((window_key(*window), LONG.serialize(count)) for window, count in self.windows.items())
        table = self.pages if topology == "repartition-count" else self.sums
        return sorted((key.encode(), LONG.serialize(value)) for key, value in table.items())

    def _model(self, topology: str) -> Output:
        views = page_views(self, 0, self.records)
        countries = {_user(n): _country(n) for n in range(self.keys)}
        if topology == "stateless":
            return models.successful(views)
        if topology == "join":
            return models.with_countries(views, countries)
        if topology == "session-count":
            return models.sessions(views)
        if topology == "stream-join":
            return models.failed_near_successful(views)
        if topology == "suppress":
            return models.closed_windows(views, self.partitions)
        return models.last_pages(views, countries)


def window_key(user: str, start_ms: int) -> bytes:
    """The key of a window of a minute, as Kafka Streams writes it."""
    return windowed(STRING).serialize(Windowed(user, Window(start_ms, start_ms + MINUTE_MS)))


def is_table(topology: str) -> bool:
    """Whether a topology's output is a table: only the last value of each key counts."""
    return topology not in ("stateless", "join", "stream-join")


def serializer(format_: str, registry: str) -> Callable[[dict[str, Any]], bytes]:
    """The function that writes the fields of a page view in a format."""
    if format_ == JSON:
        return msgspec.json.encode
    serde, kind = format_of(format_)
    serialize = placed(serde, SerdePlace(f"views-{format_}", is_key=False, registry={"url": registry})).serialize
    return lambda fields: serialize(kind(**fields))


def generate(made: Input, admin: Admin, kafka: Mapping[str, str], records: int) -> Input:
    """Write users, and their page views of about 100 bytes, one per ms of event time; each user comes at least once.

    Event time ends now: of older windows the broker would soon delete the changelogs, before they could be restored.
    """
    made.keys = min(made.keys, records)
    made.start_ms = (time.time_ns() // 1_000_000 - records) // MINUTE_MS * MINUTE_MS
    admin.create_topics([TopicSpec(topic, made.partitions) for topic in (made.views, made.users)])
    producer = IdempotentProducer(Kafka(kafka))
    for n in range(made.keys):
        producer.send(made.users, _user(n).encode(), _country(n).encode(), made.start_ms - 1, (), None)
    extend(made, producer, records)
    return made


def extend(made: Input, producer: IdempotentProducer, records: int) -> None:
    """Write so many more page views."""
    encode = made.serialize
    for n, user, timestamp, page, millis, ok in page_views(made, made.records, records):
        view = {"id": n, "user": user, "page": page, "millis": millis, "ok": ok}
        producer.send(made.views, user.encode(), encode(view), timestamp, (), None)
        made.windows[user, timestamp // MINUTE_MS * MINUTE_MS] += 1
        made.sums[user] += millis
        made.pages[page] += 1
    producer.flush()
    made.records += records


def page_views(made: Input, first: int, records: int) -> Iterator[PageView]:
    """The page views from number `first` on, as they were or will be written; `first` begins a call of `extend`."""
    random_of = random.Random(7 + first)
    for n in range(first, first + records):
        number = n if n < made.keys else random_of.randrange(made.keys)
        page, millis = f"/products/{random_of.randrange(PAGES)}", random_of.randrange(60_000)
        yield n, _user(number), made.start_ms + n, page, millis, random_of.random() < 0.9


def _user(n: int) -> str:
    return f"user-{n:06}"


def _country(n: int) -> str:
    return f"country-{n % COUNTRIES:02}"
