"""The point at which two versions are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import riverrun.releases.gating as gating_module
from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import UnderWayError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.gating import Gate, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    versions = (Application(AppConfig("app", "m:f"), name, builder.build(), {}, Path()) for name in ("v1", "v2"))
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
