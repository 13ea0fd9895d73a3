"""Converts runs, releases and differences to the JSON objects of the page, with texts in place of arbitrary values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.hosting.inputs import beyond_warning, total_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.gated import GateVerdict, HeldRun
    from riverrun.hosting.inputs import InputLag
    from riverrun.hosting.release import Release, ReleaseChange
    from riverrun.releases.rows import DifferentRow
    from riverrun.spark.runs import RunRecord

_MOST_PARTITIONS = 200
"""Maximum number of partitions to list: those with the highest lag."""


def run_object(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "app": run.app,
        "version": run.version,
        "by": run.by,
        "state": run.state,
        "started_ms": run.started_ms,
        "ended_ms": run.ended_ms,
        "range": run.range,
        "slices": run.slices,
        "records_in": run.records_in,
        "records_out": run.records_out,
        "dropped": sum(run.dropped.values()),
        "restored": run.restored,
        "error": run.error,
        "gate": run.gate,
    }


def release_object(release: Release) -> dict[str, Any]:
    """Return the state of a release as a JSON object."""
    return {
        "live": release.live,
        "step": release.step.value,
        "candidate": release.candidate,
        "previous": release.previous,
        "cut": release.cut,
        "corrections": release.corrections,
        "lost_records": list(release.lost_records),
        "pause_ms": release.pause_ms,
        "repaired": release.repaired,
        "epoch": release.epoch,
        "revision": release.revision,
        "changed_by": release.changed_by,
        "changed_ms": release.changed_ms,
        "verdict": None if release.verdict is None else verdict_object(release.verdict),
        "held": None if release.held is None else held_object(release.held, release.app),
    }


def verdict_object(verdict: GateVerdict) -> dict[str, Any]:
    """Return a gate's verdict as a JSON object."""
    return {
        "id": verdict.id,
        "at": verdict.at,
        "outcomes": verdict.outcomes,
        "critical": list(verdict.critical),
        "warnings": list(verdict.warnings),
        "needs_approval": verdict.needs_approval,
        "approved_by": verdict.approved_by,
        "approved_ms": verdict.approved_ms,
    }


def held_object(held: HeldRun, app: str) -> dict[str, Any]:
    """Return a run whose outputs a gate holds back as a JSON object."""
    return {
        "id": held.id,
        "version": held.version,
        "state": held.state.value,
        "since_ms": held.since_ms,
        "progress": held.progress,
        "hint": held.hint(app),
        "verdict": None if held.verdict is None else verdict_object(held.verdict),
    }


def change_object(change: ReleaseChange) -> dict[str, Any]:
    """Return one action on a release as a JSON object."""
    return {
        "revision": change.revision,
        "at_ms": change.at_ms,
        "by": change.by,
        "before": change.before,
        "step": change.step,
        "live": change.live,
        "candidate": change.candidate,
        "verdict": change.verdict if "verdict" in change.changed else "",
        "corrections": change.corrections if "corrections" in change.changed else 0,
        "repaired": change.repaired if "repaired" in change.changed else "",
        "held": change.held if "held" in change.changed else "",
    }


def lag_object(lags: list[InputLag]) -> dict[str, Any]:
    """Return the lag of a version, as a number and as text, with the partitions of the highest lag."""
    furthest = sorted(lags, key=lambda each: (-each.beyond, -each.lag, each.tp))[:_MOST_PARTITIONS]
    own = [each for each in lags if not each.is_internal]
    return {
        "lag": sum(each.lag for each in own),
        "committed": sum(each.committed or 0 for each in own),
        "beyond": total_text(own, "behind") if any(each.beyond for each in own) else "",
        "internal_lag": sum(each.lag for each in lags if each.is_internal),
        "partitions": len(lags),
        "error": beyond_warning(lags),
        "inputs": [
            {
                "partition": str(each.tp),
                "internal": each.is_internal,
                "committed": each.committed,
                "end": each.end,
                "lag": each.lag,
                "beyond": each.text if each.beyond else "",
            }
            for each in furthest
        ],
    }


def instance_object(server: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker as a JSON object, from its own status."""
    missing = [count for count in status["restoring"].values() if count is not None]
    return {
        "server": server,
        "state": "paused" if status["paused"] else status["state"],
        "threads": status["threads"],
        "active": len(status["active"]),
        "standby": len(status["standby"]),
        "restoring": len(status["restoring"]),
        "missing": sum(missing),
        "waiting": len(status["waiting"]),
        "processed": status["processed"],
        "member": status.get("member"),
        "recovery_s": status["recovery_s"],
        "error": None,
    }


def row_object(row: DifferentRow) -> dict[str, Any]:
    """Return a row that differs as a JSON object, with texts for all values."""
    sides = {"key": row.key, "old": row.old, "new": row.new}
    return {"topic": row.topic, "change": row.change} | {side: _texts(values) for side, values in sides.items()}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
