"""Each window's final result is forwarded once, and is what the aggregation counts: any windows, records, and restarts."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from tests.presence import present
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.topology.topology import Topology

Rows = list[tuple[str, int]]
Results = list[tuple[str, int | None, int]]
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
TICK = "~"
LATER = 10_000
"""A time at which all windows have closed, ms."""


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def topology(windows: Any, how: str, *, kept_longer_ms: int = 0, caching: bool = False) -> Topology:
    """Counts under the texts of their windows: each update, or once per window."""
    builder = StreamsBuilder()
    windowed = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows)
    if how == "emitted":
        windowed = windowed.emit_strategy(EmitStrategy.on_window_close())
    retention = ms(windows.retention_ms + kept_longer_ms) if kept_longer_ms else None
    counts = windowed.count(Materialized(STRING, name="counts", caching=caching, retention=retention))
    table = counts.suppress(FINAL) if how == "suppressed" else counts
    table.to_stream().map(lambda k, v: (str(k), v)).to("out", Produced(STRING, LONG))
    return builder.build()


def run(built: Topology, rows: Sequence[tuple[str, int]], restarts: Sequence[int], *, loses_state: bool) -> Results:
    """The results of runs that end before the given rows, without those of the last row."""
    task, found, begun = Restartable(built), [], 0
    for end in [*sorted(set(restarts)), len(rows)]:
        if loses_state:
            task.lose_state()
        task.run(*rows[begun:end])
        found += task.written()
        begun = end
    texts = [(STRING.deserialize(present(r.key)), r.value, r.timestamp) for r in found]
    return [
        (key, None if value is None else LONG.deserialize(value), at) for key, value, at in texts if TICK not in key
    ]


def last_of(updates: Results) -> Results:
    """The rows of a table after its updates."""
    table = {key: (key, value, at) for key, value, at in updates}
    return sorted(row for row in table.values() if row[1] is not None)


def counted(windows: TimeWindows, rows: Rows) -> dict[str, int]:
    """Counts of windows as documented, by a plain model."""
    found: Counter[str] = Counter()
    observed = -1
    for key, at in rows:
        observed = max(observed, at)
        for start in range(0, at + 1, windows.advance_ms):
            end = start + windows.size_ms
            if at < end and end + windows.grace_ms > observed:
                found[f"[{key}@{start}/{end}]"] += 1
    return dict(found)


small, graces = st.integers(1, 6), st.integers(0, 4)
tumbling = st.builds(lambda size, grace: TimeWindows.of(ms(size), grace=ms(grace)), small, graces)
hopping = st.builds(lambda windows, by: windows.advance_by(ms(min(by, windows.size_ms))), tumbling, small)
sliding = st.builds(lambda size, grace: SlidingWindows.of(ms(size), grace=ms(grace)), small, graces)
sessions = st.builds(lambda gap, grace: SessionWindows.of(ms(gap), grace=ms(grace)), st.integers(0, 6), graces)
records = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=25)


@settings(max_examples=150)
@given(
    tumbling | hopping | sliding | sessions,
    records,
    st.integers(0, 12),
    st.lists(st.integers(0, 25), max_size=3),
    st.booleans(),
    st.booleans(),
)
@example(SessionWindows.of(ms(5), grace=ms(3)), [("a", 0), ("b", 8), ("a", 0), ("a", 3)], 0, [], False, False)
@example(SlidingWindows.of(ms(5), grace=ms(3)), [("a", 100), ("b", 103), ("a", 100)], 0, [], False, False)
@example(SessionWindows.of(ms(5), grace=ms(3)), [("a", 0), ("b", 9), ("a", 4)], 20, [2], False, True)
def test_a_suppressed_window_is_forwarded_once_with_its_last_result(
    windows: Any, rows: Rows, kept_longer_ms: int, restarts: list[int], caching: bool, loses_state: bool
) -> None:
    ticked = [*rows, (TICK, LATER)]
    expected = last_of(run(topology(windows, "updated", kept_longer_ms=kept_longer_ms), ticked, [], loses_state=False))
    built = topology(windows, "suppressed", kept_longer_ms=kept_longer_ms, caching=caching)
    assert sorted(run(built, ticked, restarts, loses_state=loses_state)) == expected
    if isinstance(windows, TimeWindows):
        assert {key: value for key, value, _ in expected} == counted(windows, rows)


@settings(max_examples=80)
@given(tumbling | hopping | sliding | sessions, records, st.lists(st.integers(0, 25), max_size=3), st.booleans())
@example(SessionWindows.of(ms(5), grace=ms(3)), [("a", 0), ("b", 9), ("a", 4)], [], False)
def test_emission_on_close_forwards_what_suppression_forwards(
    windows: Any, rows: Rows, restarts: list[int], loses_state: bool
) -> None:
    ticked = [*rows, (TICK, LATER)]
    emitted = run(topology(windows, "emitted"), ticked, restarts, loses_state=loses_state)
    assert sorted(emitted) == sorted(run(topology(windows, "suppressed"), ticked, [], loses_state=False))


@settings(max_examples=40)
@given(tumbling | hopping | sliding | sessions, records)
def test_a_window_is_forwarded_as_soon_as_no_record_can_change_it(windows: Any, rows: Rows) -> None:
    """Records of the time at which a window is forwarded, or later ones, no longer change it; earlier ones may."""
    inclusive = not isinstance(windows, TimeWindows)
    closing_ms = windows.grace_ms + (windows.gap_ms if isinstance(windows, SessionWindows) else 0) + inclusive
    expected = run(topology(windows, "suppressed"), [*rows, (TICK, LATER)], [], loses_state=False)
    for key, *_ in expected:
        end = int(key.removesuffix("]").rpartition("/")[2])
        highest = max(at for _, at in rows)
        if highest < end + closing_ms:
            early = run(topology(windows, "suppressed"), [*rows, (TICK, end + closing_ms - 1)], [], loses_state=False)
            due = run(topology(windows, "suppressed"), [*rows, (TICK, end + closing_ms)], [], loses_state=False)
            assert key not in {row[0] for row in early}
            assert key in {row[0] for row in due}


def test_a_window_without_an_end_has_no_final_result() -> None:
    rows = [("a", 0), ("a", 7), (TICK, LATER)]
    assert run(topology(UnlimitedWindows.of(), "suppressed"), rows, [1], loses_state=False) == []
