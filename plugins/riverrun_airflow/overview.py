"""The page's view of an application: the state of each partition's offsets, the release, the last runs and checks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.secrets import redacted
from riverrun_airflow.sessions import front_door

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.release import Release
    from riverrun.records import OffsetRange, TopicPartition
    from riverrun.releases.check_log import CheckRecord
    from riverrun.spark.runs import RunRecord

log = logging.getLogger(__name__)

_RUNS, _CHECKS = 50, 10
DONE, GATED, RUNNING, FAILED, LEFT, EXPIRED = "done", "gated", "running", "failed", "left", "expired"
_UNFINISHED = frozenset({FAILED, "died"})
"""States of runs that have ended without having done their range."""
STATES = (DONE, GATED, RUNNING, FAILED, LEFT, EXPIRED)


@dataclass(frozen=True, slots=True)
class OffsetStretch:
    """Consecutive offsets of a partition in one state.

    Args:
        state: `done`; `gated`, if they are done and a gate has judged the candidate there; `running`, `failed` or `left`; or
            `expired`, if retention has deleted them.
        end: End offset (exclusive).
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
        stretches: States of its offsets, first to last.
    """

    name: str
    start: int
    end: int
    behind: str
    stretches: tuple[OffsetStretch, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The present state of an application.

    Args:
        docs: The directory of its Data Docs; None if there are none.
    """

    release: Release
    partitions: tuple[Partition, ...]
    behind: str
    runs: tuple[RunRecord, ...]
    checks: tuple[CheckRecord, ...]
    docs: Path | None = None

    def next_step(self, run: RunRecord) -> str:
        """Return what a user can do about a run that has failed or died; empty if there is nothing to do."""
        if run.state not in _UNFINISHED:
            return ""
        held, app = self.release.held, self.release.app
        if held is not None and held.version == run.version:
            return f"Decide on the outputs that are held back: {app}__held."
        later = [each for each in self.runs if each.id > run.id and each.version == run.version]
        if any(each.state not in _UNFINISHED for each in later):
            return "A later run has continued from its last commit."
        if later:
            return ""
        again = "Clear its task, or trigger" if run.by.startswith("airflow:") else "Trigger"
        return f"{again} {app}__backfill: it resumes from the last commit."

    @property
    def step(self) -> str:
        """The step that the release has reached, and its candidate."""
        return f"{self.release.step.value} {self.release.candidate or ''}".strip()


@dataclass(frozen=True, slots=True)
class Between:
    """The topics between the applications of a project.

    Args:
        picture: An SVG document.
        told: What is surprising about them, and what is not known, as text.
    """

    picture: str
    told: tuple[str, ...]


_KEPT: dict[Path, tuple[object, Between]] = {}
"""The last graph of each project: to make one runs users' code, and pages ask for it again and again."""


def between(project: ProjectConfig, live: Mapping[str, str]) -> Between:
    """Return the graph of a project, with the live versions of applications as far as they are known.

    It is made again when others go live, or when `streams.toml` or a file that is a topology changes.
    """
    made_of = dict(live), [(path, path.stat().st_mtime_ns) for path in _files(project) if path.exists()]
    before, kept = _KEPT.get(project.path, (None, Between("", ())))
    if before == made_of:
        return kept
    try:
        found, is_known = _between(project, live)
    # The page shows the applications without it.
    except Exception as error:
        log.exception("cannot draw the project")
        return Between("", (redacted(f"The topics are not known: {type(error).__name__}: {error}"),))
    # What could not be loaded may load the next time.
    if is_known:
        _KEPT[project.path] = made_of, found
    return found


def _files(project: ProjectConfig) -> list[Path]:
    versions = [(app, version) for app in project.apps.values() for version in (app.version, *app.versions)]
    files = [str(app.topology_of(each)) for app, each in versions if app.loader_of(each) is not None]
    return [project.path, *map(Path, files)]


def _between(project: ProjectConfig, live: Mapping[str, str]) -> tuple[Between, bool]:
    from riverrun.project.graph_pictures import page_picture
    from riverrun.project.surprises import surprises

    graph = front_door(project).graph(live)
    told = [str(each) for each in surprises(graph)]
    told += [redacted(f"{name} is not known: {why}") for name, why in graph.unknown.items()]
    picture, lack = page_picture(graph)
    return Between(picture, (*told, *([lack] if lack else []))), not graph.unknown


def overview(project: ProjectConfig, app: str) -> Overview:
    """Return the present state of an application. Nothing is changed."""
    from riverrun.hosting.control_topic import release_of  # not the releaser: a page loads no engine
    from riverrun.hosting.inputs import total_text
    from riverrun.spark.ranges import RunRange

    riverrun = front_door(project)
    release, application = release_of(riverrun.cluster.admin, project.app(app)), riverrun.app(app)
    runs = application.runs.history(_RUNS)
    ranges = [(run.state, RunRange.parse(run.range).ranges) for run in runs if run.version == release.live]
    judged = _judged(release)
    lags = [each for each in riverrun.app(app, version=release.live).lag() if not each.is_internal]
    partitions = []
    for each in lags:
        committed = each.start if each.committed is None else each.committed
        states = _of(each.tp, ranges)
        stretches = stretches_of(each.start, committed, each.end, states, judged.get(each.tp, 0))
        partitions.append(Partition(str(each.tp), each.start, each.end, each.text, stretches))
    checks = tuple(application.checks.history(_CHECKS))
    return Overview(release, tuple(partitions), total_text(lags), tuple(runs), checks, project.app(app).docs_directory)


def _judged(release: Release) -> Mapping[TopicPartition, int]:
    """Return the offsets up to which the last gate has judged a candidate that may still be cut."""
    from riverrun.hosting.release import ReleaseStep
    from riverrun.records import OffsetVector

    if release.verdict is None or release.step not in {ReleaseStep.GATED, ReleaseStep.CUTTING}:
        return {}
    return OffsetVector.parse(release.verdict.at).offsets


def stretches_of(
    start: int, committed: int, end: int, runs: Iterable[tuple[str, OffsetRange]], judged: int = 0
) -> tuple[OffsetStretch, ...]:
    """Return the states of a partition's offsets, from `start`, the first that exists, to `end`, the last stable offset.

    >>> from riverrun.records import OffsetRange
    >>> [(each.state, each.start, each.end) for each in stretches_of(0, 5, 20, [("failed", OffsetRange(0, 9))])]
    [('done', 0, 5), ('failed', 5, 9), ('left', 9, 20)]
    """
    asked = [(RUNNING if state == RUNNING else FAILED, r) for state, r in runs if state != DONE]
    borders = {start, committed, judged, end, *(offset for _, r in asked for offset in (r.start, r.end))}
    cuts = sorted(offset for offset in borders if start <= offset <= end)
    found = [OffsetStretch(EXPIRED, 0, start)] if start else []
    for first, behind in pairwise(cuts):
        # Runs come latest first: where two overlap, the later one's state holds.
        covering = (state for state, r in asked if r.start <= first and behind <= r.end)
        done = GATED if behind <= judged else DONE
        # Committed offsets are done, even if a run that had them has failed later.
        state = done if behind <= committed else next(covering, LEFT)
        if found and found[-1].state == state:
            found[-1] = OffsetStretch(state, found[-1].start, behind)
        else:
            found.append(OffsetStretch(state, first, behind))
    return tuple(found)


def _of(
    tp: TopicPartition, runs: Iterable[tuple[str, Mapping[TopicPartition, OffsetRange]]]
) -> list[tuple[str, OffsetRange]]:
    return [(state, ranges[tp]) for state, ranges in runs if tp in ranges]
