"""A worker notices topics that are created again, go or grow, whatever brokers answer in which order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import STRING, Consumed, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import BrokerError, TopicError
from riverrun.hosting.application import Application
from riverrun.hosting.topic_ids import short_ids
from riverrun.kafka.admin import Topic
from riverrun.kafka.door import Kafka
from riverrun.worker.tasks.known_topics import TopicWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEW, OLD = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
KNOWN = {"in": OLD, "matched": OLD, "app-v1-again-repartition": OLD}


def application() -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out")
    builder.stream(re.compile("matched.*"), Consumed(STRING, STRING)).to("out")
    topology = builder.build().resolved(["matched"])
    return Application(AppConfig("app", "none:none"), "v1", topology, Kafka({}), Path("state"))


class Watched:
    """A watch over topics, at times that a test decides."""

    def __init__(self) -> None:
        self.now = 0.0
        self.topics = {name: Topic(OLD, 2) for name in KNOWN}
        self.error: BrokerError | None = None
        self.known = KNOWN
        self.watch = TopicWatch(self._answer, lambda: set(short_ids(self.known).items()), lambda: self.now)

    def _answer(self, topics: Iterable[str]) -> Mapping[str, Topic]:
        if self.error is not None:
            raise self.error
        return {name: self.topics[name] for name in topics if name in self.topics}

    def look(self, after_s: float = 10.0) -> bool:
        """Ask, and hear the answer."""
        self.now += after_s
        app, partitions = application(), {"in": 2, "matched": 2}
        heard = self.watch.run_once(app, partitions)
        if self.watch._asked is not None:
            self.watch._asked.exception()
            heard |= self.watch.run_once(app, partitions)
        return heard


@pytest.fixture
def watched() -> Iterable[Watched]:
    found = Watched()
    yield found
    found.watch.close()


@given(st.lists(st.sampled_from(["same", "away", "absent brokers"]), max_size=6), st.sampled_from(sorted(KNOWN)))
def test_a_topic_that_is_created_again_is_noticed_whatever_came_before(before: list[str], topic: str) -> None:
    watched = Watched()
    try:
        for event in before:
            watched.error = BrokerError("away", retriable=True) if event == "absent brokers" else None
            kept = dict(watched.topics)
            if event == "away":
                watched.topics.pop(topic)
            assert not watched.look(2.0)
            watched.topics, watched.error = kept, None
            assert not watched.look(2.0)
        watched.topics[topic] = Topic(NEW, 2)
        with pytest.raises(TopicError, match=f"{topic} has been deleted and created again"):
            watched.look()
    finally:
        watched.watch.close()


@pytest.mark.parametrize("topic", ["in", "app-v1-again-repartition"])
def test_a_topic_that_stays_away_ends_the_worker(watched: Watched, topic: str) -> None:
    del watched.topics[topic]
    assert not watched.look()
    with pytest.raises(TopicError, match=f"do not exist any more: {topic}"):
        watched.look()


def test_a_matched_topic_that_is_gone_changes_the_tasks(watched: Watched) -> None:
    del watched.topics["matched"]
    assert not watched.look()
    assert watched.look()


@pytest.mark.parametrize("topic", ["in", "matched"])
def test_partitions_that_are_added_change_the_tasks(
    watched: Watched, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched.topics[topic] = Topic(OLD, 3)
    assert watched.look()
    assert f"topic {topic} has 3 partitions, and had 2: the tasks change" in caplog.text


def test_brokers_are_not_asked_all_the_time(watched: Watched) -> None:
    watched.look()
    watched.topics["in"] = Topic(NEW, 2)
    assert not watched.look(0.5)


def test_a_topic_of_a_task_that_is_taken_over_during_a_look_up_is_not_missed(watched: Watched) -> None:
    later = {**KNOWN, "app-v1-counts-changelog": OLD}
    watched.topics["app-v1-counts-changelog"] = Topic(OLD, 2)
    app, partitions = application(), {"in": 2, "matched": 2}
    for _ in range(3):
        watched.now += 10
        # Asked before the task is taken over, or after it was given back, and heard while it runs.
        watched.known = KNOWN
        watched.watch.run_once(app, partitions)
        assert watched.watch._asked is not None
        watched.watch._asked.exception()
        watched.known = later
        assert not watched.watch.run_once(app, partitions)
