"""The page's view of an application: what of each partition is done, runs or has failed, and where its release stands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from millrace_airflow.sessions import front_door

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.config import ProjectConfig
    from pipeline.records import OffsetRange, TopicPartition

_RUNS = 50
"""So many of the last runs are looked at."""
DONE, RUNNING, FAILED, LEFT = "done", "running", "failed", "left"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of a partition of which one thing is true.

    Args:
        state: `done`, `running`, `failed` or `left`.
        start: The first offset.
        end: The offset behind the last one.
    """

    state: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of an input.

    Args:
        name: `topic-partition`.
        start: The first offset that still exists.
        end: The last stable offset.
        lag: Offsets that are left.
        stretches: What is true of its offsets, first to last.
    """

    name: str
    start: int
    end: int
    lag: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """An application as it is now.

    Args:
        app: The application.
        live: The version that is live.
        release: Where its release stands, in words.
        verdict: The last verdict of a gate, line by line; empty if there is none.
        partitions: Its inputs.
        runs: The last runs, latest first, each in a line.
    """

    app: str
    live: str
    release: str
    verdict: tuple[str, ...]
    partitions: tuple[Partition, ...]
    runs: tuple[str, ...]

    @property
    def lag(self) -> int:
        """Offsets that are left in all inputs."""
        return sum(each.lag for each in self.partitions)


def overview(project: ProjectConfig, app: str) -> Overview:
    """Look at an application. Nothing is changed.

    Raises:
        StreamsError: If brokers do not answer, or it cannot be loaded.
    """
    from pipeline.releases.registry import release_of  # without what takes the steps: a page loads no engine
    from pipeline.spark.ranges import RunRange

    millrace = front_door(project)
    release, runs = release_of(millrace.reach(), project.app(app)), millrace.app(app).runs(_RUNS)
    ranges = [(run.state, RunRange.parse(run.range).ranges) for run in runs if run.version == release.live]
    partitions = []
    for each in millrace.app(app, release.live).lag():
        if not each.is_internal:
            stretches = stretches_of(each.start, each.committed or each.start, each.end, _of(each.tp, ranges))
            partitions.append(Partition(str(each.tp), each.start, each.end, each.lag, stretches))
    verdict = () if release.verdict is None else tuple(str(release.verdict).splitlines())
    told = f"{release.step.value} {release.candidate or ''}".strip()
    lines = tuple(f"{run.state}: {run.version} by {run.by}, {run.range} {run.error or ''}".strip() for run in runs[:10])
    return Overview(app, release.live, told, verdict, tuple(partitions), lines)


def stretches_of(start: int, committed: int, end: int, runs: Iterable[tuple[str, OffsetRange]]) -> tuple[Stretch, ...]:
    """Say what is true of a partition's offsets. What is committed is done, whoever did it.

    >>> from pipeline.records import OffsetRange
    >>> [(each.state, each.start, each.end) for each in stretches_of(0, 5, 20, [("failed", OffsetRange(0, 9))])]
    [('done', 0, 5), ('failed', 5, 9), ('left', 9, 20)]

    Args:
        start: The first offset that still exists.
        committed: Where the application stands.
        end: The last stable offset.
        runs: States and ranges of runs, latest first: of what two of them have asked for, the later one's state holds.
    """
    asked = [(RUNNING if state == RUNNING else FAILED, r) for state, r in runs if state != DONE]
    borders = {start, committed, end, *(offset for _, r in asked for offset in (r.start, r.end))}
    cuts = sorted(offset for offset in borders if start <= offset <= end)
    found: list[Stretch] = []
    for first, behind in pairwise(cuts):
        covering = (state for state, r in asked if r.start <= first and behind <= r.end)
        state = DONE if behind <= committed else next(covering, LEFT)
        if found and found[-1].state == state:
            found[-1] = Stretch(state, found[-1].start, behind)
        else:
            found.append(Stretch(state, first, behind))
    return tuple(found)


def _of(
    tp: TopicPartition, runs: Iterable[tuple[str, Mapping[TopicPartition, OffsetRange]]]
) -> list[tuple[str, OffsetRange]]:
    return [(state, ranges[tp]) for state, ranges in runs if tp in ranges]
