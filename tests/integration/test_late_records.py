"""Late records stay late after a restart, with and without local state."""

from __future__ import annotations

import shutil
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverrun import LONG, STRING, Consumed, Produced, StreamsBuilder, TimeWindows
from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from riverrun.hosting.inputs import dropped_so_far
from riverrun.testing import TopologyTestDriver
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

START_MS = 1_767_226_240_000


def counting(name: str) -> Topology:
    builder = StreamsBuilder()
    windows = TimeWindows.of(timedelta(seconds=10), grace=timedelta(seconds=5))
    counts = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows).count()
    counts.to_stream().map(lambda key, count: (key.key, count)).to(f"{name}.out", Produced(STRING, LONG))
    return builder.build()


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.parametrize("keeps_state", [True, False], ids=["local state kept", "local state lost"])
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE_V2, AT_LEAST_ONCE])
def test_a_record_is_late_for_the_next_worker_as_well(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str, keeps_state: bool
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    app = broker.application(unique, counting(unique), tmp_path / "state", processing_guarantee=guarantee)

    def work(*records: tuple[bytes, int]) -> None:
        broker.write(f"{unique}.in", [(key, b"", START_MS + at_ms) for key, at_ms in records])
        Worker(app).run(until_caught_up=True)

    work((b"k", 1000), (b"other", 17_900))
    if not keeps_state:
        shutil.rmtree(app.directory)
    work((b"k", 9000), (b"last", 20_000))
    assert [record.key for record in broker.read(f"{unique}.out")] == [b"k", b"other", b"last"], "9 s is late at 17.9 s"


PARTS = st.lists(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", None]), st.integers(0, 60_000)), max_size=8), max_size=3
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS)
def test_drops_are_counted_once_over_all_workers(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[bytes | None, int]]]
) -> None:
    """Each worker continues from the counts that were committed with the offsets; a test driver counts without any restart."""
    name = f"drops{uuid.uuid4().hex[:8]}"
    broker.create(1, f"{name}.in", f"{name}.out")
    app = broker.application(name, counting(name), tmp_path_factory.mktemp("state"))
    first: list[tuple[bytes | None, int]] = [(b"first", 0)]
    for part in [first, *parts]:
        broker.write(f"{name}.in", [(key, b"", START_MS + at_ms) for key, at_ms in part])
        Worker(app).run(until_caught_up=True)
    with TopologyTestDriver(counting(name)) as driver:
        topic = driver.input_topic(f"{name}.in", STRING, STRING)
        everything: list[tuple[bytes | None, int]] = [*first, *(record for part in parts for record in part)]
        for key, at_ms in everything:
            topic.pipe_input(None if key is None else key.decode(), "", timestamp=START_MS + at_ms)
        expected = {str(reason): count for reason, count in driver.dropped().items() if count}
    assert dict(dropped_so_far(broker.connected(app))) == expected
