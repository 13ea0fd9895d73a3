"""Snapshots, resets and skipped records of an application, and its state on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import ConfigError
from riverrun.hosting.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.hosting.inputs.skipping import Skip
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.records import TopicPartition
    from riverrun.state.backends.snapshots import Manifest
    from riverrun.worker.reset import Reset


def publish_state(chosen: ChosenVersion) -> list[Manifest]:
    """Publish the current state of all tasks, and return the manifests.

    Raises:
        ConfigError: If there is no `snapshot.url`.
    """
    from riverrun.hosting.tasks.snapshots_from_log import publish_snapshots

    if not chosen.config.streams.snapshot_url:
        message = f"No place for snapshots of {chosen.name} is set"
        raise ConfigError(message, hint=f'Set "snapshot.url" in [apps.{chosen.name}.config].')
    connected = chosen.connected().resolved()
    connected.prepare()
    return publish_snapshots(connected, SystemClock())


def planned_reset(chosen: ChosenVersion, start: str) -> Reset:
    """Return the actions of a reset.

    Args:
        chosen: The application.
        start: New start of the inputs: `earliest`, `latest`, a vector or a time.
    """
    from riverrun.spark.ranges import resolve
    from riverrun.worker.reset import plan_reset

    connected = chosen.connected()
    offsets = resolve(connected, start, "latest").start
    return plan_reset(connected, offsets, chosen.project.application_ids)


def start_over(chosen: ChosenVersion, plan: Reset) -> None:
    """Carry out a reset."""
    from riverrun.worker.reset import reset

    reset(plan, chosen.cluster.admin)


def local_state(chosen: ChosenVersion, state_dir: Path | None) -> list[Path]:
    """Return the directories of its state on this machine.

    Args:
        chosen: The application.
        state_dir: Directory of all applications' state; None for `state.dir`.
    """
    from riverrun.hosting.restoring.local_state import directories_of

    return list(directories_of(chosen.application_id, state_dir or chosen.project.state_directory(chosen.config)))


def delete_local_state(chosen: ChosenVersion, state_dir: Path | None) -> list[Path]:
    """Delete its state on this machine, and return the deleted directories."""
    from riverrun.worker.reset import clean_up

    found = local_state(chosen, state_dir)
    clean_up(found)
    return found


def planned_skip(chosen: ChosenVersion, tp: TopicPartition, offset: int) -> Skip:
    """Return how one input record would be skipped."""
    from riverrun.hosting.inputs.skipping import plan_skip

    application = chosen.loaded()
    chosen.require_no_switch(application)
    return plan_skip(chosen.on_brokers(application), tp, offset)


def skip_record(chosen: ChosenVersion, planned: Skip) -> Skip:
    """Skip a record."""
    from riverrun.hosting.inputs.skipping import carry_out

    return carry_out(chosen.connected(), planned)
