"""The demo's first act: a topology and its results, in memory, without a broker or an extra.

One topology is run in ways that must agree: by a task in one go, and by a task that stops half-way and that another process
continues. The task is the one of workers and bounded runs; only its topics are lists here.
"""

from __future__ import annotations

import inspect
import multiprocessing
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.table import Table

from riverrun import JSON, LONG, STRING, Consumed, Produced, StreamsBuilder, TimeWindows, windowed
from riverrun.processor.handlers import DropReason
from riverrun.records import RawRecord, TopicPartition
from riverrun.runtime.layout import TaskSpec, plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

    from riverrun import Topology
    from riverrun.records import Headers
    from riverrun.state.api import StateBackend


def build(builder: StreamsBuilder) -> Topology:
    """Count the clicks of each user in five minutes."""
    clicks = builder.stream("clicks", Consumed(STRING, JSON))
    pages = clicks.filter(lambda _user, click: click["page"] != "/health")
    windows = TimeWindows.of(timedelta(minutes=5), grace=timedelta(minutes=1))
    counts = pages.group_by_key().windowed_by(windows).count()
    counts.to_stream().to("click-counts", Produced(windowed(STRING), LONG))
    return builder.build()


CLICKS = 100_000
"""Number of clicks that the hosts process."""
_SIZE = timedelta(minutes=5)
_SIZE_MS, _GRACE_MS = 300_000, 60_000
_TEN_MS = 1_767_261_600_000
"""2026-01-01T10:00:00Z."""
_CLICKS, _COUNTS, _ID = "clicks", "click-counts", "clicks-v1"
_INPUT = TopicPartition(_CLICKS, 0)
_COMMIT_EVERY = 10_000
"""Number of records between two commits."""
_PAGES = ("/", "/cart", "/health", "/pay")

_Key = tuple[str, int]
"""A user, and the start of the window in ms."""

_SCENES: tuple[tuple[str, str, int, str], ...] = (
    ("ann", "/", 0, ""),
    ("ann", "/health", 20, "filtered out"),
    ("ann", "/cart", 100, ""),
    ("bob", "/", 310, "a new window begins"),
    ("ann", "/pay", 270, "out of order, within grace"),
    ("bob", "/cart", 370, "past 10:06, 10:00-10:05 closes"),
    ("ann", "/", 280, "late: dropped, and counted"),
)
"""User, page, seconds after ten o'clock, and a remark."""


@dataclass(frozen=True, slots=True)
class SavedTask:
    """The part of a task that outlives it, which brokers have otherwise.

    Args:
        offsets: The committed offset of each input, with its metadata.
        changelog: The records of the store's changelog.
        counts: The last count of each user and window in the output topic.
        late: Number of records that were dropped as late.
    """

    offsets: Mapping[TopicPartition, tuple[int, str]]
    changelog: tuple[RawRecord, ...]
    counts: Mapping[_Key, int]
    late: int


BEGINNING = SavedTask({}, (), {}, 0)


@dataclass(frozen=True, slots=True)
class _Restored:
    """Records of a changelog, as stores take them (`ChangelogBatch`)."""

    records: Sequence[RawRecord]

    def keys(self) -> list[bytes]:
        return [record.key or b"" for record in self.records]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def timestamps(self) -> list[int]:
        return [record.timestamp for record in self.records]

    def headers(self) -> list[Headers]:
        return [record.headers for record in self.records]


def clicks(first: int, behind: int) -> Iterator[tuple[str, str, int]]:
    """Yield user, page and event time (ms) of the clicks with numbers in a range; some are out of order, some late."""
    for n in range(first, behind):
        behind_ms = 90_000 * (n % 97 == 0) + 7 * (n * 7919 % 5000)
        yield f"user-{n * 7919 % 500}", _PAGES[n * 31 % 7 % 4], _TEN_MS + n * 36 - behind_ms


def processed(until: int, before: SavedTask = BEGINNING, directory: Path | None = None) -> SavedTask:
    """Process clicks up to number `until` (exclusive) with a task, as its hosts do: restore, start, process, commit.

    `directory` is that of a RocksDB for the state; None keeps the state in memory.
    """
    topology = build(StreamsBuilder())
    ((task_id, inputs),) = plan_layout(topology, _ID, {_CLICKS: 1}).tasks.items()
    (sub,) = topology.sub_topologies()
    spec = TaskSpec(task_id, sub, _ID, inputs)
    (changelog,) = spec.own_changelogs.values()
    topics = MemoryTopics({changelog.topic: list(before.changelog)})
    backend, close = _state(directory)
    task = Task(spec, Ports(topics, backend, MockClock()))
    task.restore(changelog, _Restored(before.changelog), len(before.changelog))
    task.start(before.offsets)
    offsets = dict(before.offsets)
    begin, _ = offsets.get(_INPUT, (0, ""))
    for first in range(begin, until, _COMMIT_EVERY):
        chosen = clicks(first, min(first + _COMMIT_EVERY, until))
        records = [
            RawRecord(user.encode(), JSON.serialize({"page": page}), at_ms, first + n)
            for n, (user, page, at_ms) in enumerate(chosen)
        ]
        task.add_records(_INPUT, records)
        task.process_all()
        commit = task.prepare_commit()
        offsets |= commit.offsets
        task.post_commit({tp: len(topics.logs[tp.topic]) for tp in commit.changelogs})
    late = task.dropped[DropReason.LATE]
    task.close()
    close()
    counts = {**before.counts, **_table(topics.logs.get(_COUNTS, ()))}
    return SavedTask(offsets, tuple(topics.logs[changelog.topic]), counts, before.late + late)


def continued(until: int, before: SavedTask) -> SavedTask:
    """Process the other clicks in another process, whose state is in RocksDB, restored from the changelog."""
    # `spawn`: the process gets nothing of this one but its arguments.
    own = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, own) as process, tempfile.TemporaryDirectory() as directory:
        return process.submit(processed, until, before, Path(directory)).result()


def counted_by_hand(until: int) -> tuple[dict[_Key, int], int]:
    """Return the counts, and the number of late clicks, from a loop that knows nothing of Riverrun."""
    counts: Counter[_Key] = Counter()
    late, stream_time_ms = 0, 0
    for user, page, at_ms in clicks(0, until):
        if page == "/health":
            continue
        stream_time_ms = max(stream_time_ms, at_ms)
        start_ms = at_ms - at_ms % _SIZE_MS
        if start_ms + _SIZE_MS + _GRACE_MS <= stream_time_ms:
            late += 1
        else:
            counts[user, start_ms] += 1
    return dict(counts), late


def _state(directory: Path | None) -> tuple[StateBackend, Callable[[], None]]:
    """Return where a task keeps its state, and a function that closes it."""
    if directory is None:
        return MemoryBackend(), lambda: None
    backend = RocksDbBackend(directory)
    return backend, backend.close


def _table(records: Sequence[RawRecord]) -> dict[_Key, int]:
    """Return the last count of each user and window."""
    keys, table = windowed(STRING, _SIZE), {}
    for record in records:
        key = keys.deserialize(record.key or b"")
        table[key.key, key.window.start] = LONG.deserialize(record.value or b"")
    return table


@dataclass(frozen=True)
class FirstAct:
    """Shows the topology, its results, and that they are equal wherever a task continues."""

    console: Console
    clicks: int = CLICKS

    def tell(self) -> bool:
        """Run the act; return whether all hosts agree."""
        self.console.print("\n[bold]A topology.[/] It counts the clicks of each user in five minutes:\n")
        source = inspect.getsource(build).rstrip()
        self.console.print(Syntax(source, "python", theme="ansi_dark", background_color="default"))
        self.console.print("\n[bold]Its results.[/] The test driver takes seven clicks, one after the other:\n")
        self.console.print(self._scenes())
        self.console.print(
            f"\n[bold]Stopped, and continued elsewhere.[/] {self.clicks:,} clicks, some out of order, some late:\n"
        )
        return self._hosts()

    def _scenes(self) -> Table:
        shown = Table("event time", "user", "page", "result", "", box=None, padding=(0, 0, 0, 2), header_style="dim")
        with TopologyTestDriver(build(StreamsBuilder())) as driver:
            topic = driver.input_topic(_CLICKS, STRING, JSON)
            counts = driver.output_topic(_COUNTS, windowed(STRING, _SIZE), LONG)
            for user, page, second, remark in _SCENES:
                at_ms = _TEN_MS + second * 1000
                topic.pipe_input(user, {"page": page}, timestamp=at_ms)
                results = [
                    f"{key.key} {_clock(key.window.start)}-{_clock(key.window.end)}: {count}"
                    for key, count in counts.read_key_values_to_list()
                    if key is not None
                ]
                shown.add_row(_clock(at_ms, "%H:%M:%S"), user, page, ", ".join(results) or "-", f"[dim]{remark}")
        return shown

    def _hosts(self) -> bool:
        half = self.clicks // 2
        shown = Table("", box=None, padding=(0, 0, 0, 2), header_style="dim")
        shown.add_column("clicks", justify="right")
        shown.add_column("seconds", justify="right")

        def timed(name: str, clicks: int, work: Callable[[], SavedTask]) -> SavedTask:
            begun = time.perf_counter()
            done = work()
            shown.add_row(name, f"{clicks:,}", f"{time.perf_counter() - begun:.1f}")
            return done

        with self.console.status("Processing"):
            whole = timed("one task takes all of them", self.clicks, lambda: processed(self.clicks))
            first = timed("one task takes half of them, and stops", half, lambda: processed(half))
            rest = timed(
                "another process takes the rest; it restores the state\n"
                f"from {len(first.changelog):,} records of the changelog, into RocksDB",
                self.clicks - half,
                lambda: continued(self.clicks, first),
            )
            counts, late = counted_by_hand(self.clicks)
        self.console.print(shown)
        held = whole.counts == rest.counts == counts and whole.late == rest.late == late
        verdict = "[bold green]all equal" if held else "[bold red]they differ"
        self.console.print(
            f"\n  {len(counts):,} counts and {late} late clicks, checked against a plain loop: {verdict}[/]"
        )
        return held


def _clock(time_ms: int, style: str = "%H:%M") -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(style)
