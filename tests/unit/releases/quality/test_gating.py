"""The point at which two versions are compared."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import riverrun.releases.gating as gating_module
from riverrun import LONG, STRING, Consumed, Grouped, Produced, StreamsBuilder, TimeWindows, Window, Windowed, windowed
from riverrun.config import AppConfig
from riverrun.errors import UnderWayError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.door import Kafka
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.difference import Digests, Pair, TableRow
from riverrun.releases.gating import Gate, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

INPUT, PUBLIC, STAGING = (TopicPartition(name, 0) for name in ("in", "out", "app-v2-staging-out"))


class Brokers:
    """Two versions and their topics: the live one goes on a number of times while ends are asked for."""

    def __init__(self, moves: int, left_between: Iterable[int] = ()) -> None:
        self.moves = moves
        self.live, self.candidate = 5, 5
        self.left_between = iter(left_between)

    def are_at_one_place(self, _live: Any, _candidate: Any) -> bool:
        return self.live == self.candidate

    def follow(self, _candidate: Any, _live: Any) -> None:
        self.candidate = self.live

    def place(self, _live: Any, _candidate: Any) -> OffsetVector:
        return OffsetVector({INPUT: self.live})

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def stable_end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        ends = dict.fromkeys(tps, self.live * 10)
        if self.moves:
            self.moves -= 1
            self.live += 1
        return ends

    def lags(self, _connected: Any) -> Iterator[Any]:
        yield SimpleNamespace(is_internal=False, lag=100)
        yield SimpleNamespace(is_internal=True, lag=next(self.left_between, 0))


def point(brokers: Any, monkeypatch: pytest.MonkeyPatch) -> Point:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    versions = (Application(AppConfig("app", "m:f"), name, builder.build(), Kafka({}), Path()) for name in ("v1", "v2"))
    monkeypatch.setattr(gating_module, "input_lags", brokers.lags)
    return Gate(None, brokers, lambda: None).point(*(ConnectedApplication(each, brokers) for each in versions))


def test_a_candidate_follows_until_both_versions_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    found = point(Brokers(moves=2), monkeypatch)
    assert found == Point(OffsetVector({INPUT: 7}), {PUBLIC: 70, STAGING: 70})
    assert (found.of("out"), found.of("in")) == ({PUBLIC: 70}, {})


def test_what_lies_between_sub_topologies_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert point(Brokers(moves=0, left_between=[0, 3, 4]), monkeypatch).vector == OffsetVector({INPUT: 5})


def test_a_live_version_that_goes_on_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnderWayError, match="app-v1 continues while v2 is compared with it"):
        point(Brokers(moves=100), monkeypatch)


def judged(
    build: Callable[[StreamsBuilder], None],
    tmp_path: Path,
    admin: Any,
    ends: dict[TopicPartition, int],
    *,
    has_all_logs: bool = True,
) -> Any:
    builder = StreamsBuilder()
    build(builder)
    topology = builder.build()
    versions = (
        Application(AppConfig("app", "m:f"), name, topology, Kafka({}), tmp_path / name) for name in ("v1", "v2")
    )
    live, candidate = (ConnectedApplication(each, admin) for each in versions)
    nothing: Any = SimpleNamespace()
    gate = Gate(None, nothing, lambda: None)
    return gate.judge(live, candidate, Point(OffsetVector({}), ends), has_all_logs=has_all_logs)


def test_a_window_without_rows_of_the_candidate_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minute = timedelta(minutes=1)

    def build(builder: StreamsBuilder) -> None:
        grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
        counts = grouped.windowed_by(TimeWindows.of_size_with_no_grace(minute)).count()
        counts.to_stream().to("out", Produced(windowed(STRING, minute), LONG))

    def pairs() -> Iterator[Pair]:
        for start in (0, 60_000, 120_000):
            found = TableRow(LONG.serialize(1), start)
            key = windowed(STRING, minute).serialize(Windowed("a", Window(start, start + 60_000)))
            yield Pair(0, key, found, None if start == 60_000 else found)

    @contextmanager
    def differ(*_arguments: Any) -> Iterator[Any]:
        yield SimpleNamespace(advance=lambda *_ends: None, rows=pairs, digests=lambda: Digests({}, {}))

    monkeypatch.setattr(gating_module, "Differ", SimpleNamespace(of=differ))
    found = judged(build, tmp_path, SimpleNamespace(), {})
    assert found.warnings == ("out: each interval has rows",)
    assert found.outcomes["out: each interval has rows"] == (
        "failed: 1 row lost in 1 interval: none in the window from 1970-01-01T00:01:00.000+00:00, the live version 1"
    )


@pytest.mark.parametrize(
    ("written", "warnings"),
    [((4, 4), ()), ((4, 0), ("out: each partition has records",)), ((0, 0), ("out: it has rows",))],
)
def test_logs_without_records_that_the_live_version_has_are_warnings(
    written: tuple[int, int], warnings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))

    def records(_admin: Any, ranges: Any) -> Iterator[Any]:
        for tp, wanted in ranges.items():
            yield tp, [(b"a", b"1", 5, offset, ()) for offset in range(wanted.start, wanted.end)]

    monkeypatch.setattr(gating_module, "read_fields", records)
    admin = SimpleNamespace(beginning_offsets=lambda tps: dict.fromkeys(tps, 0))
    ends = {TopicPartition("out", n): 4 for n in range(2)}
    ends |= {TopicPartition("app-v2-staging-out", n): count for n, count in enumerate(written)}
    assert judged(build, tmp_path, admin, ends).warnings == warnings
    assert judged(build, tmp_path, admin, ends, has_all_logs=False).warnings == ()
