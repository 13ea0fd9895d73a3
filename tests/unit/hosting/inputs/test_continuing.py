"""Applications whose committed offsets brokers have deleted: what is known of them, and where users let them continue."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import BrokerError, ForgottenOffsetsError
from riverrun.hosting import continuing
from riverrun.hosting.continuing import expiry_warning
from riverrun.kafka.admin import CommittedOffset
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

TP = TopicPartition("app-v1-words-repartition", 0)
KEPT = OffsetMetadata(100, taken=3, next_time=120, times={"store": 90}, owner="gone")


@pytest.fixture
def admin() -> Any:
    return SimpleNamespace(topic_ids=lambda _topics: {}, end_offsets=lambda tps: dict.fromkeys(tps, 9))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, OffsetMetadata(100, taken=3, next_time=120, times={"store": 90})),
        (6, OffsetMetadata(100, times={"store": 90})),
    ],
)
def test_what_was_taken_of_a_pack_counts_for_that_pack_alone(
    admin: Any, monkeypatch: pytest.MonkeyPatch, offset: int, expected: OffsetMetadata
) -> None:
    kept = {TP: CommittedOffset(5, KEPT.encode())}
    monkeypatch.setattr(continuing, "KeptOffsets", lambda _admin, _id: SimpleNamespace(read=lambda: kept))
    connected: Any = SimpleNamespace(id="app-v1", admin=admin, application=None, committed=lambda _tps: {})
    found, metadata = continuing._resumed(connected, {TP: offset})[TP]
    assert (found, OffsetMetadata.decode(metadata)) == (offset, expected)


def test_who_may_not_read_copies_of_commits_is_told_so(admin: Any) -> None:
    def denied(_topics: Any) -> Any:
        message = "Topic authorization failed"
        raise BrokerError(message)

    admin.topic_ids = denied
    config: Any = SimpleNamespace(application_id=lambda version: f"app-{version}", name="app")
    assert "committed offsets of app-v1: Topic authorization failed" in (expiry_warning(admin, config, "v1") or "")


@pytest.mark.parametrize(
    ("owner", "members", "committed", "expected"),
    [
        ("gone", [], True, r"No worker of app-v1 runs.*offsets.retention.minutes = 10080"),
        ("gone", [], False, "Brokers have deleted committed offsets of app-v1"),
        ("gone", ["a member"], True, None),
        ("", [], True, None),  # the copy is of the last commit
        ("", [], False, None),
    ],
)
def test_offsets_that_only_brokers_know_are_warned_of_while_nothing_keeps_them(
    admin: Any,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    members: list[str],
    committed: bool,
    expected: str | None,
) -> None:
    kept = {TP: CommittedOffset(5, OffsetMetadata(100, owner=owner).encode())}
    monkeypatch.setattr(continuing, "KeptOffsets", lambda _admin, _id: SimpleNamespace(read=lambda: kept))
    admin.partitions = lambda topics: dict.fromkeys(topics, 1)
    admin.group = lambda _group: SimpleNamespace(members=members)
    admin.committed = lambda _group, _tps, **_: kept if committed else {}
    admin.beginning_offsets = lambda tps: dict.fromkeys(tps, 0)
    admin.broker_config = lambda _name: "10080"
    config: Any = SimpleNamespace(application_id=lambda version: f"app-{version}", name="app")
    warning = expiry_warning(admin, config, "v1")
    assert (warning is None) == (expected is None)
    assert expected is None or re.search(expected, warning or "")


INPUT = TopicPartition("words", 0)


@pytest.fixture
def refused(admin: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ForgottenOffsetsError]:
    """Return the refusal of an application that was killed at offset 5 of a log with these ends."""

    def found(first: int, end: int, tp: TopicPartition = TP) -> ForgottenOffsetsError:
        kept = {tp: CommittedOffset(5, OffsetMetadata(100, owner="gone").encode())}
        monkeypatch.setattr(continuing, "KeptOffsets", lambda _admin, _id: SimpleNamespace(read=lambda: kept))
        admin.beginning_offsets = lambda tps: dict.fromkeys(tps, first)
        admin.end_offsets = lambda tps: dict.fromkeys(tps, end)
        config: Any = SimpleNamespace(application_id=lambda version: f"app-{version}", name="app")
        connected: Any = SimpleNamespace(
            admin=admin,
            id="app-v1",
            version="v1",
            inputs={tp},
            noted=lambda _tps: {},
            application=SimpleNamespace(config=config, id="app-v1"),
        )
        with pytest.raises(ForgottenOffsetsError) as error:
            continuing.require_new(connected, [tp])
        return error.value

    return found


@pytest.mark.parametrize(
    ("tp", "first", "end", "message", "command"),
    [
        (
            TP,
            0,
            5,
            "nothing was written since, so it is at app-v1-words-repartition-0@5",
            "app-v1-words-repartition-0@5",
        ),
        (TP, 0, 6, "at most to app-v1-words-repartition-0@6", "app-v1-words-repartition-0@OFFSET"),
        # Records of repartition topics are deleted only once they are processed.
        (
            TP,
            9,
            9,
            "nothing was written since, so it is at app-v1-words-repartition-0@9",
            "app-v1-words-repartition-0@9",
        ),
        (INPUT, 0, 5, "nothing was written since, so it is at words-0@5", "words-0@5"),
        (
            INPUT,
            9,
            9,
            "at least to words-0@5, and at most to words-0@9. Records before words-0@9 have been",
            "words-0@OFFSET",
        ),
    ],
)
def test_a_command_that_would_count_or_skip_records_is_never_named(
    refused: Callable[..., ForgottenOffsetsError], tp: TopicPartition, first: int, end: int, message: str, command: str
) -> None:
    """Only an offset that is sure to be the next one is in the command."""
    error = refused(first, end, tp)
    assert message in error.message
    found = re.search(r"riverrun resume app --version v1 --from (\S+?)\.?(?: |$)", error.hint or "")
    assert found is not None
    assert found[1] == command


@pytest.mark.parametrize("tp", [TP, INPUT])
def test_a_topic_that_ends_before_the_application_was_is_not_resumed(
    refused: Callable[..., ForgottenOffsetsError], tp: TopicPartition
) -> None:
    error = refused(0, 4, tp)
    assert f"{tp} ends at 4, before 5: records were lost, or the topic was created again" in error.message
    assert "riverrun resume" not in (error.hint or "")
