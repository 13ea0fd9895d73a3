"""The difference of two topics on a real broker: read once, kept, and published."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import riverrun.releases.differ as differ_module
from riverrun.errors import RangeError
from riverrun.hosting.process import SystemClock
from riverrun.kafka.brokers_clock import BrokersClock
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.kafka.ranges import read_fields
from riverrun.records import RawRecord, TopicPartition
from riverrun.releases.differ import Differ
from riverrun.releases.difference import KeyChange, Side
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun.releases.difference import Pair
    from tests.brokers import Broker


class Topics:
    """A public topic and a staging topic, and what tests ask of their difference."""

    def __init__(self, broker: Broker, unique: str, directory: Path) -> None:
        self.broker, self.directory = broker, directory / "index"
        self.public, self.staging = f"{unique}.public", f"{unique}-v2-staging-{unique}.public"
        self.create()

    def create(self) -> None:
        self.broker.create(2, self.public, self.staging)

    def write(self, topic: str, **values: str | None) -> None:
        """Write rows, keys by name; None deletes. Keys are in partition 0 up to `m`, and in 1 behind that."""
        for key, value in values.items():
            written = None if value is None else value.encode()
            self.broker.write(topic, [(key.encode(), written, 5)], int(key > "m"))

    @contextmanager
    def differ(self) -> Iterator[Differ]:
        with Differ(self.public, self.public, self.staging, self.directory, self.broker.admin()) as d:
            yield d

    def compared(self) -> dict[str, KeyChange]:
        with self.differ() as differ:
            differ.advance(*differ.stable_ends())
            return changes(differ.rows())

    def read(self) -> dict[str, str | None]:
        return {
            present(r.key).decode(): None if r.value is None else r.value.decode()
            for r in self.broker.read(self.public)
        }


def changes(pairs: Iterator[Pair]) -> dict[str, KeyChange]:
    return {pair.key.decode(): pair.change for pair in pairs}


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def topics(broker: Broker, unique: str, tmp_path: Path) -> Topics:
    return Topics(broker, unique, tmp_path)


def test_a_differ_reads_only_what_is_new_and_only_up_to_the_given_ends(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.write(topics.public, ann="1", bob="2", zoe="3")
    topics.write(topics.staging, ann="1", bob="0", cy="4")
    assert topics.compared() == {
        "ann": KeyChange.SAME,
        "bob": KeyChange.CHANGED,
        "cy": KeyChange.NEW,
        "zoe": KeyChange.GONE,
    }
    with topics.differ() as differ:
        noted = differ.stable_ends()
    topics.write(topics.public, cy="4", bob="9")
    read, ranges = read_fields, list[Any]()

    def watched(admin: Any, wanted: Any) -> Any:
        ranges.append({tp.topic: each.size for tp, each in wanted.items() if each.size})
        return read(admin, wanted)

    monkeypatch.setattr(differ_module, "read_fields", watched)
    with topics.differ() as differ:
        differ.advance(*noted)
        assert changes(differ.differences()) == {"bob": KeyChange.CHANGED, "cy": KeyChange.NEW, "zoe": KeyChange.GONE}
        differ.advance(*differ.stable_ends())
        assert changes(differ.differences()) == {"bob": KeyChange.CHANGED, "zoe": KeyChange.GONE}
        assert ranges == [{}, {topics.public: 2}]
        with pytest.raises(RangeError, match=rf"{topics.public}-0 was compared up to offset 4: what it held at 2"):
            differ.advance(*noted)


def test_an_index_of_recreated_or_truncated_topics_is_built_again(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.write(topics.public, ann="1", bob="2")
    topics.write(topics.staging, ann="1")
    assert topics.compared() == {"ann": KeyChange.SAME, "bob": KeyChange.GONE}
    topics.broker.admin().delete_topics([topics.staging])
    topics.create()
    topics.write(topics.staging, bob="2")
    assert topics.compared() == {"ann": KeyChange.GONE, "bob": KeyChange.SAME}
    topics.broker.admin().delete_records({TopicPartition(topics.public, 0): 1})
    assert topics.compared() == {"bob": KeyChange.SAME}, "consumers do not find what was deleted"
    compacted = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    topics.broker.configure(topics.staging, compacted)  # tombstones that were not read may be gone at once
    topics.write(topics.staging, cat="1", dan="2")
    with caplog.at_level("WARNING"):
        assert topics.compared() == {"bob": KeyChange.SAME, "cat": KeyChange.NEW, "dan": KeyChange.NEW}
    assert "brokers keep deletions for 0 ms (delete.retention.ms): deletions may be missing" in caplog.text


def test_an_index_is_built_again_when_the_clock_was_set_back_since(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics.write(topics.public, ann="1")
    topics.broker.configure(topics.staging, {"cleanup.policy": "compact", "delete.retention.ms": "60000"})
    earlier = SystemClock().now_ms() - 3_600_000
    with caplog.at_level("WARNING"):
        assert topics.compared() == {"ann": KeyChange.GONE}
        assert "rebuilt" not in caplog.text
        topics.write(topics.staging, ann="1", bob="2")
        monkeypatch.setattr(BrokersClock, "now_ms", lambda _self: earlier)
        assert topics.compared() == {"ann": KeyChange.SAME, "bob": KeyChange.NEW}
    assert "is rebuilt" in caplog.text, "nothing says how old it is"


def test_an_index_that_is_damaged_or_in_use_does_not_stop_anything(topics: Topics) -> None:
    topics.write(topics.public, ann="1")
    expected = {"ann": KeyChange.GONE}
    assert topics.compared() == expected
    with topics.differ():
        assert topics.compared() == expected, "another process, or a thread, has an index of its own"
    assert [path.name for path in topics.directory.parent.iterdir()] == ["index"]
    (topics.directory / "CURRENT").write_text("nonsense")
    assert topics.compared() == expected


@pytest.mark.broker
def test_corrections_are_published_once_and_counted_whatever_attempt_published_them(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.write(topics.public, ann="1", bob="2", zoe="3")
    topics.write(topics.staging, ann="1", bob="0", cy="4")
    commit = TransactionalProducer.commit

    def dies(producer: Any, *arguments: Any) -> None:
        commit(producer, *arguments)
        raise KeyboardInterrupt

    with topics.differ() as differ:
        with monkeypatch.context() as patched:
            patched.setattr(TransactionalProducer, "commit", dies)
            with pytest.raises(KeyboardInterrupt):
                differ.publish(lambda: None, "first")
        assert topics.read() == {"ann": "1", "bob": "0", "cy": "4", "zoe": None}
        assert differ.publish(lambda: None, "first") == 3
    topics.write(topics.staging, ann="7")
    with topics.differ() as differ:
        assert differ.publish(lambda: None, "first") == 4, "what came later belongs to it as well"
        assert differ.digests().unequal
        assert differ.publish(lambda: None, "second") == 0
        assert not differ.digests().unequal
    assert len(topics.broker.read(topics.public)) == 3 + 4


def test_one_index_serves_both_directions(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topics.write(topics.public, ann="1", bob="2")
    topics.write(topics.staging, bob="0", cy="4")
    with topics.differ() as differ:
        assert differ.publish(lambda: None, side=Side.NEW) == 3
    topics.write(topics.staging, ann="7")
    read, ranges = read_fields, list[Any]()

    def watched(admin: Any, wanted: Any) -> Any:
        ranges.append({tp.topic for tp, each in wanted.items() if each.size})
        return read(admin, wanted)

    monkeypatch.setattr(differ_module, "read_fields", watched)
    with topics.differ() as differ:
        assert differ.publish(lambda: None) == 1
    assert ranges == [{topics.staging}], "what was read of the public topic is known"
    assert topics.read() == {"ann": "7", "bob": "2"}


def test_rows_that_are_published_keep_their_times_and_headers(topics: Topics) -> None:
    producer, headers = IdempotentProducer(topics.broker.door), (("trace", b"1"), ("empty", None))
    producer.send(topics.staging, b"ann", b"5", 7, headers, 1)
    producer.flush()
    with topics.differ() as differ:
        assert differ.publish(lambda: None) == 1
    assert topics.broker.read(topics.public) == [RawRecord(b"ann", b"5", 7, 0, headers)]
