"""Ids of topics in the metadata of offsets: what fits, what is read back, and what a changed id means."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import STRING, Consumed, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import TopicError
from riverrun.hosting.application import Application
from riverrun.hosting.topic_ids import MOST_TOPICS, committed_ids, ids_to_commit, require_same, short_ids
from riverrun.kafka.door import Kafka
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata

LIMIT = 4096
LONGS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.from_regex(re.compile(r"[a-zA-Z0-9._][a-zA-Z0-9._-]{0,248}"), fullmatch=True)
IDS = st.dictionaries(NAMES, LONGS, max_size=12)


def application() -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out")
    builder.global_table("rows", Consumed(STRING, STRING))
    return Application(AppConfig("app", "none:none"), "v1", builder.build(), Kafka({}), Path("state"))


@given(st.dictionaries(st.text(max_size=30).filter(lambda key: not key.startswith("__")), LONGS, max_size=90), IDS)
def test_ids_of_topics_take_only_the_room_that_times_leave(kept: dict[str, int], ids: dict[str, int]) -> None:
    without = OffsetMetadata(7, kept)
    text = OffsetMetadata(7, kept, topics=ids).encode()
    assert len(text) <= max(LIMIT, len(without.encode()))
    found = OffsetMetadata.decode(text)
    assert found.topics.items() <= ids.items()
    assert list(found.topics) == list(ids)[: len(found.topics)], "the most important ones first"
    assert OffsetMetadata(7, kept).encode() == without.encode()
    assert (found.partition_time, found.processor_metadata) == (7, kept)
    assert len(found.topics) == len(ids) or len(text) > LIMIT - 400


@given(IDS, st.integers(0, 11))
def test_committed_ids_are_read_back_by_their_full_names(ids: dict[str, int], chosen: int) -> None:
    own = {f"app-v1-{name}"[:249] if n % 2 else name: id_ for n, (name, id_) in enumerate(ids.items())}
    topic = list(own)[chosen % len(own)] if own else "in"
    committed = ids_to_commit(TopicPartition(topic, 0), own, "app-v1")
    assert len(committed) == min(len(own), MOST_TOPICS)
    text = OffsetMetadata(7, topics=committed).encode()
    found = committed_ids({TopicPartition(topic, 0): (5, text)}, "app-v1")
    assert found.items() <= own.items()
    assert topic in found or not own
    require_same(application(), found.items(), own)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_equal_ids_are_equal_and_others_differ(one: bytes, other: bytes) -> None:
    def short(data: bytes) -> dict[str, int]:
        return short_ids({"in": base64.urlsafe_b64encode(data).decode().rstrip("=")})

    assert short(one) == short(one)
    assert (short(one) == short(other)) == (one[8:] == other[8:])


def test_brokers_without_ids_are_never_found_to_have_other_topics() -> None:
    assert short_ids({"in": "A" * 22}) == {}
    require_same(application(), {"in": 1}.items(), {})


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        (["in"], "riverrun reset app --version v1"),
        (["rows"], "Start again"),
        (["in", "rows"], "riverrun reset app --version v1"),
    ],
)
def test_a_changed_id_names_the_topic_and_the_way_out(changed: list[str], hint: str) -> None:
    present = {"in": 1, "rows": 2} | dict.fromkeys(changed, 3)
    with pytest.raises(TopicError, match=", ".join(changed)) as raised:
        require_same(application(), {"in": 1, "rows": 2}.items(), present)
    assert hint in (raised.value.hint or "")
