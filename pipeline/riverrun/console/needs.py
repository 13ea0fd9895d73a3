"""Finds what a person has to look at in an application: decisions, dead workers, failed runs, and records that were skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.processor.handlers import DropReason
from riverrun.records import TopicPartition, counted
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DIED, FAILED
from riverrun.worker.states import WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from riverrun.spark.runs import RunRecord

_SKIPPED = (DropReason.UNDECODABLE, DropReason.PROCESSING_FAILED, DropReason.PRODUCTION_FAILED, DropReason.SET_ASIDE)
"""The reasons for which handlers leave records out."""


def needs_of(app: Mapping[str, Any], runs: Sequence[RunRecord]) -> list[str]:
    """Return what needs a person, most urgent first, as texts.

    Args:
        app: The application as a JSON object, as the console shows it.
        runs: Its bounded runs, latest first.
    """
    live = next((version for version in app["versions"] if version["live"]), None)
    found = [*_decisions(app), *_of_instances(app)]
    if live is not None and "inputs" in live:
        found += _of_workers(live, runs)
    # The next run repeats what one has left; a worker that runs has done so.
    last = runs[0] if runs else None
    if last is not None and last.state in {FAILED, DIED} and not (live is not None and live.get("members")):
        found.append(f"the last bounded run has {last.state}{f': {last.error}' if last.error else ''}")
    return [*found, *_skipped(live)]


def _decisions(app: Mapping[str, Any]) -> Iterator[str]:
    release = app.get("release") or {}
    held, verdict = release.get("held"), release.get("verdict")
    if held:
        yield f"the outputs of run {held['id']} are held back: {held['progress']}. {held['hint']}"
    if verdict and verdict["needs_approval"]:
        yield f"verdict {verdict['id']} needs an approval: {', '.join(verdict['warnings'])}"


def _of_instances(app: Mapping[str, Any]) -> Iterator[str]:
    for version in app["versions"]:
        for each in version.get("instances", ()):
            if each["state"] == WorkerState.ERROR.value:
                yield f"{each['server']} has failed"
            elif each.get("member") is False:
                yield f"{each['server']} has left its group"


def _of_workers(live: Mapping[str, Any], runs: Sequence[RunRecord]) -> Iterator[str]:
    """Say if a worker was the last to process, and none is there for what is left."""
    if live["members"] or not live["lag"]:
        return
    # A run has no range of repartition topics.
    own = [each for each in live["inputs"] if not each["internal"] and each["committed"] is not None]
    ran = next((run for run in runs if run.version == live["version"]), None)
    ends = RunRange.parse(ran.range if ran is not None else "").end.offsets
    if any(each["committed"] > ends.get(TopicPartition.parse(each["partition"]), 0) for each in own):
        yield f"no worker runs any more: {counted(live['lag'], 'offset')} left"


def _skipped(live: Mapping[str, Any] | None) -> Iterator[str]:
    dropped = live.get("dropped", {}) if live is not None else {}
    found = {reason.value: dropped[reason] for reason in _SKIPPED if dropped.get(reason)}
    if found:
        told = ", ".join(f"{reason} {count}" for reason, count in found.items())
        yield f"{counted(sum(found.values()), 'record')} skipped since it began: {told}"
