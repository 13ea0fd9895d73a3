"""Checks for authors of sinks: each of `SINK_CHECKS` takes a new, empty target, and fails if the sink breaks the contract.

```py
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_my_sink(check, tmp_path):
    check(SinkUnderTest(open=lambda: MySink(SINK_TABLE, tmp_path), places=lambda: places_in(tmp_path)))
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import TaskMigratedError
from riverrun.processor.sinks import OFFSET, PARTITION, TIMESTAMP, Sink, SinkBatch, SinkTable
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TOPIC = "sink-checks"
_ONE, _OTHER = TopicPartition(_TOPIC, 0), TopicPartition(_TOPIC, 1)


def sink_table() -> SinkTable:
    """Return the table that sinks under test keep: columns `_key`, `n`, `_timestamp`, `_partition` and `_offset`."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kinds = {"_key": pa.string(), "n": pa.int64(), TIMESTAMP: pa.timestamp("us", "UTC")}
    places = {PARTITION: pa.int32(), OFFSET: pa.int64()}
    return SinkTable("checks", _TOPIC, "checked", pa.schema({**kinds, **places}.items()), ("_key",))


@dataclass(frozen=True, slots=True)
class SinkUnderTest:
    """A sink and its target.

    Args:
        open: Returns a sink of `sink_table()` on the target, as another process would open it.
        places: Returns partition and offset of each row that readers of the target see.
    """

    open: Callable[[], Sink]
    places: Callable[[], Iterable[tuple[int, int]]]

    def require_rows(self, *expected: tuple[int, int]) -> None:
        """Check the rows in the target.

        Raises:
            AssertionError: If there are others.
        """
        found = sorted(self.places())
        _require(found == sorted(expected), f"the target has rows {found}, not {sorted(expected)}")


def a_new_target_has_no_offsets(sink: SinkUnderTest) -> None:
    """Check that a new target returns no offsets, so that a follower begins at the first record."""
    _require(dict(sink.open().begin([_ONE, _OTHER])) == {}, "a new target has offsets")
    sink.require_rows()


def committed_records_are_there_with_their_offsets(sink: SinkUnderTest) -> None:
    """Check that the next owner finds the end offsets (exclusive) of what was committed."""
    first = sink.open()
    first.begin([_ONE, _OTHER])
    _write(first, _ONE, 0, 1)
    _write(first, _OTHER, 5)
    _write(first, _ONE, 2)
    first.commit({_ONE: 3, _OTHER: 6})
    sink.require_rows((0, 0), (0, 1), (0, 2), (1, 5))
    _require_offsets(sink.open(), {_ONE: 3, _OTHER: 6})


def later_commits_follow_earlier_ones(sink: SinkUnderTest) -> None:
    """Check several commits of one owner, of which some have records of one partition only."""
    owner = sink.open()
    owner.begin([_ONE, _OTHER])
    for offset in range(3):
        _write(owner, _ONE, offset)
        owner.commit({_ONE: offset + 1})
    _write(owner, _OTHER, 0)
    owner.commit({_OTHER: 1})
    sink.require_rows((0, 0), (0, 1), (0, 2), (1, 0))
    _require_offsets(sink.open(), {_ONE: 3, _OTHER: 1})


def records_without_a_commit_are_not_there(sink: SinkUnderTest) -> None:
    """Check that records of a dead owner are not seen, and are written by the next one."""
    dead = sink.open()
    dead.begin([_ONE])
    _write(dead, _ONE, 0, 1)
    heir = sink.open()
    _require_offsets(heir, {}, [_ONE])
    sink.require_rows()
    _write(heir, _ONE, 0, 1)
    heir.commit({_ONE: 2})
    sink.require_rows((0, 0), (0, 1))


def begin_forgets_records_without_a_commit(sink: SinkUnderTest) -> None:
    """Check that an owner that begins again, as after an error, does not commit what it had written before."""
    owner = sink.open()
    owner.begin([_ONE, _OTHER])
    _write(owner, _ONE, 0)
    owner.begin([_ONE, _OTHER])
    _write(owner, _OTHER, 0)
    owner.commit({_OTHER: 1})
    sink.require_rows((1, 0))
    _write(owner, _ONE, 0)
    owner.commit({_ONE: 1})
    sink.require_rows((0, 0), (1, 0))


def an_earlier_owner_is_refused(sink: SinkUnderTest) -> None:
    """Check that an owner cannot commit once another one has taken its partition over and continued it."""
    zombie, heir = sink.open(), sink.open()
    zombie.begin([_ONE])
    _write(zombie, _ONE, 0)
    zombie.commit({_ONE: 1})
    _write(zombie, _ONE, 1)
    heir.begin([_ONE])
    _write(heir, _ONE, 1, 2)
    heir.commit({_ONE: 3})
    _require_refusal(zombie, _ONE, 2)
    sink.require_rows((0, 0), (0, 1), (0, 2))
    _require_offsets(sink.open(), {_ONE: 3})


def of_two_owners_one_is_refused(sink: SinkUnderTest) -> None:
    """Check that two owners that have read the same records write them once, and that the refused one can begin again."""
    one, other = sink.open(), sink.open()
    for owner in (one, other):
        owner.begin([_ONE])
        _write(owner, _ONE, 0, 1)
    refused = []
    for owner in (one, other):
        try:
            owner.commit({_ONE: 2})
        except TaskMigratedError:
            refused.append(owner)
    _require(len(refused) == 1, f"{len(refused)} of two owners are refused")
    sink.require_rows((0, 0), (0, 1))
    _require_offsets(refused[0], {_ONE: 2}, [_ONE])
    _write(refused[0], _ONE, 2)
    refused[0].commit({_ONE: 3})
    sink.require_rows((0, 0), (0, 1), (0, 2))


def owners_of_other_partitions_do_not_meet(sink: SinkUnderTest) -> None:
    """Check that taking over one partition fences nobody from another."""
    one, other = sink.open(), sink.open()
    one.begin([_ONE])
    _write(one, _ONE, 0)
    other.begin([_OTHER])
    _write(other, _OTHER, 0)
    other.commit({_OTHER: 1})
    one.commit({_ONE: 1})
    sink.require_rows((0, 0), (1, 0))


def a_released_sink_can_begin_again(sink: SinkUnderTest) -> None:
    """Check that beginning without partitions releases the target, and that the sink is usable afterwards."""
    owner = sink.open()
    owner.begin([_ONE])
    _write(owner, _ONE, 0)
    owner.commit({_ONE: 1})
    _require(dict(owner.begin([])) == {}, "no partitions have offsets")
    _require_offsets(owner, {_ONE: 1}, [_ONE])
    _write(owner, _ONE, 1)
    owner.commit({_ONE: 2})
    sink.require_rows((0, 0), (0, 1))


SINK_CHECKS: tuple[Callable[[SinkUnderTest], None], ...] = (
    a_new_target_has_no_offsets,
    committed_records_are_there_with_their_offsets,
    later_commits_follow_earlier_ones,
    records_without_a_commit_are_not_there,
    begin_forgets_records_without_a_commit,
    an_earlier_owner_is_refused,
    of_two_owners_one_is_refused,
    owners_of_other_partitions_do_not_meet,
    a_released_sink_can_begin_again,
)
"""Every check of a sink that adds rows."""


def _write(sink: Sink, tp: TopicPartition, *offsets: int) -> None:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    rows = [
        {"_key": f"k{tp.partition}-{offset}", "n": offset, TIMESTAMP: offset, PARTITION: tp.partition, OFFSET: offset}
        for offset in offsets
    ]
    sink.write(SinkBatch(tp, pa.RecordBatch.from_pylist(rows, sink_table().schema), [False] * len(rows)))


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_offsets(sink: Sink, expected: dict[TopicPartition, int], tps: Iterable[TopicPartition] = ()) -> None:
    found = dict(sink.begin(list(tps) or list(expected)))
    _require(found == expected, f"the target has offsets {found}, not {expected}")


def _require_refusal(sink: Sink, tp: TopicPartition, offset: int) -> None:
    try:
        sink.commit({tp: offset})
    except TaskMigratedError:
        return
    message = f"an earlier owner of {tp} was not refused"
    raise AssertionError(message)
