"""When a worker commits before its interval is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipeline import STRING, Consumed, Grouped, Produced, StreamsBuilder
from pipeline.config import AppConfig, StreamsConfig
from pipeline.hosting.application import Application
from pipeline.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker


@pytest.fixture
def commits_of(broker: Any, unique: str, tmp_path: Path) -> Any:
    """How often a worker without caches, whose interval is never over, commits to count so many different words."""

    def count(words: int) -> int:
        builder = StreamsBuilder()
        counts = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING)).count()
        counts.to_stream().map_values(str).to(f"{unique}.out", Produced(STRING, STRING))
        streams = StreamsConfig(commit_interval_ms=3_600_000, statestore_cache_max_bytes=0)
        broker.create(1, f"{unique}.in", f"{unique}.out")
        broker.write(f"{unique}.in", [(b"w%d" % n, b"", n + 1) for n in range(words)])
        config = AppConfig(unique, "none:none", streams=streams)
        application = Application(config, "v1", builder.build(), broker.kafka, tmp_path)
        return Worker(application).run(until_caught_up=True).commits

    return count


def test_without_caches_a_worker_commits_when_its_interval_says(commits_of: Any) -> None:
    assert commits_of(words=5_000) == 1


def test_what_is_not_committed_does_not_grow_without_bound_even_without_caches(commits_of: Any) -> None:
    assert commits_of(words=60_000) == 2
