"""Records of changelogs that no store has written: a restore takes them over, or names the changelog."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    SessionWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from riverrun.errors import CorruptStateError, StateError
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.state_manager import ProcessorStateManager
from riverrun.state.memory import MemoryBackend
from tests.changelogs import Batch


def builders() -> dict[str, Any]:
    """A builder of each kind of store, by name."""
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed(STRING, STRING))
    grouped = words.group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="rows"))
    window = TimeWindows.of(timedelta(seconds=5), grace=timedelta(seconds=1))
    grouped.windowed_by(window).count(Materialized(name="windows")).suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded())
    )
    grouped.windowed_by(SessionWindows.of(timedelta(seconds=1))).count(Materialized(name="sessions"))
    others = builder.stream("other", Consumed(STRING, STRING))
    joins = JoinWindows.of(timedelta(seconds=1), grace=timedelta(0))
    words.outer_join(others, lambda a, b: f"{a}{b}", joins, joined=StreamJoined(STRING, STRING, STRING))
    versions = Stores.persistent_versioned_key_value_store("versions", timedelta(hours=1))
    builder.table("table", Consumed(STRING, STRING), Materialized(supplier=versions))
    return {each.name: each for sub in builder.build().sub_topologies() for each in sub.stores}


BUILDERS = builders()
HEADERS = st.lists(st.tuples(st.sampled_from(["v", "__k", "x"]), st.none() | st.binary(max_size=9)), max_size=2).map(
    tuple
)
RECORDS = st.lists(
    st.builds(
        RawRecord,
        st.binary(max_size=40),
        st.none() | st.binary(max_size=40),
        st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]),
        st.integers(0, 9),
        HEADERS,
    ),
    max_size=4,
)


def test_each_kind_of_store_is_tried() -> None:
    assert len({builder.kind for builder in BUILDERS.values()}) >= 5


@pytest.mark.parametrize("name", BUILDERS)
@given(records=RECORDS)
@example(records=[RawRecord(b"", b"", 0, 0)])
@example(records=[RawRecord(b"k", b"v", 0, 0)])
@example(records=[RawRecord(b"\xff" * 20, b"\xff" * 20, -1, 0)])
@example(records=[RawRecord(b"k", b"v", 0, 0, (("v", b"\x03"),))])
def test_a_restore_of_foreign_records_is_done_or_refused_by_name(name: str, records: list[RawRecord]) -> None:
    changelog = TopicPartition(f"clicks-v1-{name}-changelog", 0)
    spec: Any = SimpleNamespace(
        id=TaskId(0, 0),
        sub_topology=SimpleNamespace(stores=(BUILDERS[name],)),
        own_changelogs={name: changelog},
        source_changelogs={},
    )
    ports: Any = SimpleNamespace(backend=MemoryBackend(), pause=lambda: None, watch=None)
    context: Any = SimpleNamespace(stream_time=0, time=0, headers=(), timestamp=0, keeps_sources=False)
    state = ProcessorStateManager(spec, ports, context)
    try:
        state.restore(changelog, Batch(records), 10)
    except CorruptStateError:
        return  # records of a buffer with another layout
    except StateError as error:
        if str(changelog) in error.message and name in error.message:
            return
        raise
