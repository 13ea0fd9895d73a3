"""A skipped record becomes a letter, which says whether the record may have left a trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from riverrun.hosting.skipping import Skip, _send_letter
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.topics.letters import letter_of

ORDERS, DEAD = TopicPartition("orders", 0), TopicPartition("dead", 0)


@pytest.mark.parametrize(("guarantee", "left_no_trace"), [(EXACTLY_ONCE_V2, True), (AT_LEAST_ONCE, False)])
def test_only_exactly_once_undoes_what_a_skipped_record_did(guarantee: str, left_no_trace: bool) -> None:
    streams = SimpleNamespace(errors_dead_letter_queue_topic_name=DEAD.topic, processing_guarantee=guarantee)
    application: Any = SimpleNamespace(dead_letters=None, config=SimpleNamespace(streams=streams))
    sent: list[Any] = []
    owner: Any = SimpleNamespace(send=lambda *record: sent.append(record))
    skip = Skip(TaskId(0, 0), ORDERS, RawRecord(b"k", b"v", 0, 8, ()), 9, "")
    _send_letter(application, skip, owner)
    ((_, key, value, timestamp, headers, _),) = sent
    letter = letter_of(DEAD, (key, value, timestamp, 0, headers), {})
    assert letter is not None
    assert letter.left_no_trace == left_no_trace
