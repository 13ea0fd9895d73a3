"""Serves records of an application's topics, and its dead letters: pages that are limited in records, bytes and time.

Nothing is written, and nothing joins a group. An instance reads a limited number of pages at a time.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import APIRouter, FastAPI, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from riverrun.errors import ConfigError, RangeError, StreamsError, TopicError
from riverrun.kafka.admin import Admin
from riverrun.service.admission import refused
from riverrun.service.answering import as_json, show_refusals
from riverrun.topics.letters import DeadLetters, LetterFilter, decoded_record, letter_object
from riverrun.topics.pages import NEWEST, PageLimits, TopicPager
from riverrun.topics.records import TopicReader
from riverrun.topics.serdes import serdes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from riverrun.hosting.application import Application
    from riverrun.service.reading import QueriedInstance
    from riverrun.topics.letters import DeadLetter

MOST_RECORDS = 1000
_AT_ONCE = 2
_STATUS: tuple[tuple[type[StreamsError], int, str], ...] = (
    (TopicError, 404, "no-such-topic"),
    (ConfigError, 404, "no-such-topic"),
    (RangeError, 400, "bad-request"),
)
_LONGEST_TEXT = 1000


class Asked(BaseModel):
    """The parameters of a page of a topic, after the `?`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    start: str = Field(
        NEWEST,
        alias="from",
        max_length=100_000,
        description="`newest`, `earliest`, `latest`, a time, or `next` of a page.",
    )
    contains: str = Field("", max_length=_LONGEST_TEXT, description="Only records with this in their key or value.")
    limit: int = Field(100, ge=1, le=MOST_RECORDS, description="Maximum number of records.")


class AskedLetters(BaseModel):
    """The parameters of a page of dead letters, after the `?`. Times are in ms."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    error: str = Field("", max_length=_LONGEST_TEXT, description="Only letters whose exception has this text.")
    origin: str = Field("", max_length=_LONGEST_TEXT, description="Only letters from this topic, partition or record.")
    since: int | None = Field(None, alias="from", ge=0, description="Only letters with this event time or a later one.")
    until: int | None = Field(None, alias="to", ge=0, description="Only letters with an earlier event time than this.")
    decided: bool = Field(default=False, description="Whether letters that were replayed or discarded come, too.")
    limit: int = Field(100, ge=1, le=MOST_RECORDS, description="Maximum number of letters.")


class Browsed(Protocol):
    """Topics and letters, as the requests see them (`Browsing`)."""

    def topics(self) -> list[dict[str, Any]]:
        """Return the topics that the application reads or writes for others."""

    def records(self, topic: str, asked: Asked) -> dict[str, Any]:
        """Return a page of a topic's records."""

    def letters(self, asked: AskedLetters) -> dict[str, Any]:
        """Return a page of dead letters."""

    def letter(self, place: str) -> dict[str, Any] | None:
        """Return a letter; None if there is none at this place."""

    def turn(self) -> AbstractContextManager[bool]:
        """Take a turn among few readers."""


class Browsing:
    """Reads topics for an instance's HTTP interface."""

    def __init__(self, instance: QueriedInstance, limits: PageLimits | None = None) -> None:
        self._instance = instance
        self._limits = limits or PageLimits()
        # Each page reads up to the limits of `PageLimits`; without a limit, readers would take the worker's bandwidth and CPU.
        self._free = threading.Semaphore(_AT_ONCE)

    def topics(self) -> list[dict[str, Any]]:
        """Return the topics that the application reads or writes for others, with their serdes."""
        application = self._instance.application
        topology, staged = application.topology, application.published or {}
        names = dict.fromkeys((*sorted(topology.external_topics), *topology.sink_topics))
        read, written = topology.external_topics, frozenset(topology.sink_topics)
        actual = {name: staged.get(name, name) if name in written else name for name in names}
        counts = self._admin.partitions(actual.values())
        found = []
        for name, topic in actual.items():
            serdes = serdes_of(topology, name)
            roles = [role for role, own in (("input", read), ("output", written)) if name in own]
            found.append({
                "topic": topic,
                "partitions": counts.get(topic, 0),
                "roles": roles,
                "key_serde": serdes[0].name,
                "value_serde": serdes[1].name,
            })  # fmt: skip
        return found

    def records(self, topic: str, asked: Asked) -> dict[str, Any]:
        """Return a page of a topic's records."""
        application = self._instance.application
        name = _own_name(application, topic)
        reader = TopicReader(self._admin, topic, *serdes_of(application.topology, name))
        page = TopicPager(reader, self._limits).page(asked.start, asked.limit, asked.contains)
        return {
            "records": page.records,
            "next": str(page.next),
            "looked_at": page.looked_at,
            "is_end": page.is_end,
        }

    def letters(self, asked: AskedLetters) -> dict[str, Any]:
        """Return a page of dead letters, the oldest first; none if the application has no topic for them."""
        application = self._instance.application
        if self._letters_topic is None:
            return {"app": application.config.name, "topic": None, "letters": [], "is_end": True}
        wanted = LetterFilter(frozenset(), asked.error, asked.origin, asked.since, asked.until, asked.decided)
        letters, until, is_late = self._letters, time.monotonic() + self._limits.seconds, False

        def is_enough() -> bool:
            nonlocal is_late
            is_late = time.monotonic() > until
            return is_late

        try:
            # One more than asked for shows whether there are further letters.
            found = list(islice(letters.list(wanted, is_enough), asked.limit + 1))
        except TopicError:  # it does not exist before the first letter, where brokers create topics
            found = []
        shown = [_summary(letter) for letter in found[: asked.limit]]
        return {
            "app": application.config.name,
            "topic": letters.topic,
            "letters": shown,
            "is_end": len(found) <= asked.limit and not is_late,
        }

    def letter(self, place: str) -> dict[str, Any] | None:
        """Return a letter with its record, by the application's serdes; None if there is none at this place."""
        found = self._letters.at(place)
        if found is None:
            return None
        key, value = decoded_record(self._instance.application.topology, found)
        return letter_object(found) | {"key_text": key, "value_text": value}

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Take a turn among few readers; yields whether there was one."""
        is_free = self._free.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._free.release()

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self._instance.application.kafka)

    @property
    def _letters_topic(self) -> str | None:
        application = self._instance.application
        return application.dead_letters or application.config.streams.errors_dead_letter_queue_topic_name

    @property
    def _letters(self) -> DeadLetters:
        if self._letters_topic is None:
            message = f"{self._instance.application.config.name} has no dead letter topic"
            raise ConfigError(message, hint="Set errors.dead.letter.queue.topic.name.")
        application = self._instance.application
        return DeadLetters(self._admin, self._letters_topic, reader=lambda: (application.id, application.topology))


def browse(api: FastAPI, browsing: Browsed) -> None:
    """Add the requests for topics and letters to an interface."""
    router = APIRouter()
    show_refusals(api, _STATUS)

    @router.get("/topics")
    def topics() -> Response:
        """Return the topics that the application reads or writes for others, with their serdes."""
        return as_json(browsing.topics())

    @router.get("/topics/{topic}/records")
    def records(topic: str, asked: Annotated[Asked, Query()]) -> Response:
        """Return a page of committed records of a topic, read by the application's serdes."""
        with browsing.turn() as is_free:
            return as_json(browsing.records(topic, asked)) if is_free else _busy()

    @router.get("/letters")
    def letters(asked: Annotated[AskedLetters, Query()]) -> Response:
        """Return a page of the application's dead letters, the oldest first."""
        with browsing.turn() as is_free:
            return as_json(browsing.letters(asked)) if is_free else _busy()

    @router.get("/letters/{place}")
    def letter(place: str) -> Response:
        """Return a dead letter, by its place (`orders-dead-0@3`), with its record, exception and stack trace."""
        with browsing.turn() as is_free:
            if not is_free:
                return _busy()
            found = browsing.letter(place)
        return refused("no-such-letter", f"There is no letter at {place}", 404) if found is None else as_json(found)

    api.include_router(router)


def _busy() -> Response:
    return refused("busy", f"{_AT_ONCE} pages of topics are being read: try again", 503)


def _own_name(application: Application, topic: str) -> str:
    """Return the name by which the topology knows a topic."""
    topology, staged = application.topology, application.published or {}
    names = {staged.get(name, name): name for name in topology.sink_topics}
    names |= {name: name for name in topology.external_topics}
    if topic not in names:
        raise ConfigError(f"The application neither reads nor writes {topic[:_LONGEST_TEXT]} for others")
    return names[topic]


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "place": letter.name,
        "timestamp": letter.timestamp,
        "origin": f"{letter.origin}@{letter.origin_offset}",
        "error": letter.error,
        "message": letter.message[:_LONGEST_TEXT],
        "note": None if letter.note is None else asdict(letter.note),
    }
