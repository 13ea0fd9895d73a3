"""Operations on an application: each takes the version that a program has chosen, and loads its engines on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.hosting.process import SystemClock
from riverrun.project.bounded import BoundedRun
from riverrun.project.live import asked, work_of
from riverrun.releases.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from riverrun.hosting.inputs import InputLag
    from riverrun.hosting.skipping import Skip
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.records import TopicPartition
    from riverrun.releases.live_quality import CheckRecord, LiveVerdict
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord
    from riverrun.state.snapshots import Manifest
    from riverrun.worker.reset import Reset


@dataclass(frozen=True, slots=True)
class AppStatus:
    """Instances and tasks of a running application.

    Args:
        application_id: Id of the application and version.
        group: The state of its consumer group, by Kafka's names.
        members: Its instances and runs, as `client-id@host`.
        instance: The `/status` of one instance, which covers all tasks; None if none was asked.
    """

    application_id: str
    group: str
    members: tuple[str, ...]
    instance: Mapping[str, Any] | None = None


def check_published(chosen: ChosenVersion, since: str) -> LiveVerdict:
    """Judge the published records and the work of instances of the live version, and note the result in the history of checks.

    Args:
        chosen: The application.
        since: The first records to judge: `last`, a vector, a time, or empty for all.
    """
    from riverrun.hosting.process import this_user
    from riverrun.releases.live_quality import LiveCheck

    cluster = chosen.cluster
    connected, ask = chosen.on_brokers(chosen.processing()), partial(work_of, chosen)
    check = LiveCheck(connected, cluster.sessions.session, SystemClock(), ask)
    return check.run(since, cluster.by or this_user())


def checks_of(chosen: ChosenVersion, limit: int | None) -> list[CheckRecord]:
    """Return the history of checks, latest first; with a limit only the latest."""
    from riverrun.releases.live_quality import CheckLog

    return CheckLog(chosen.cluster.admin).checks(chosen.name)[:limit]


def status_of(chosen: ChosenVersion, server: str | None) -> AppStatus:
    """Return the places where an application runs.

    Args:
        chosen: The application.
        server: `host:port` of an instance with details; None for `application.server`, if an instance runs.
    """
    application_id = chosen.application_id
    group = chosen.cluster.admin.group(application_id)
    address = server or chosen.config.streams.application_server
    is_asked = bool(group.members or server) and bool(address) and not address.endswith(":0")
    instance = asked(chosen, "GET", "/status", server=address) if is_asked else None
    return AppStatus(application_id, group.state, tuple(map(str, group.members)), instance)


def lag_of(chosen: ChosenVersion) -> list[InputLag]:
    """Return the lag of an application per partition of its inputs and of its repartition topics."""
    from riverrun.hosting.inputs import input_lags

    return input_lags(chosen.connected())


def bounded_run(
    chosen: ChosenVersion,
    start: str | RunRange,
    to: str,
    *,
    advance_stream_time_to: str | None,
    wall_clock_punctuation: str | None,
    max_records_per_slice: int,
) -> BoundedRun:
    """Return a bounded run of an application over a range, which this determines.

    Args:
        chosen: The application.
        start: Start of the range, or a whole range.
        to: End of the range; ignored if `start` is a whole range.
        advance_stream_time_to: Time to which event time advances after the last record.
        wall_clock_punctuation: `refuse`, `once` or `never`; None for the setting.
        max_records_per_slice: Size of slices.
    """
    from riverrun.spark.ranges import resolve, time_ms

    application = chosen.processing()
    if wall_clock_punctuation is not None:
        application = application.with_wall_clock_punctuation(wall_clock_punctuation)
    connected = chosen.on_brokers(application)
    return BoundedRun(
        connected,
        resolve(connected, start, to) if isinstance(start, str) else start,
        chosen.cluster,
        lambda: chosen.require_no_switch(application),
        advance_to_ms=None if advance_stream_time_to is None else time_ms(advance_stream_time_to),
        max_records_per_slice=max_records_per_slice,
    )


def runs_of(chosen: ChosenVersion, limit: int | None) -> list[RunRecord]:
    """Return the bounded runs of an application, latest first; with a limit only the latest."""
    from riverrun.spark.runs import RunLog

    return RunLog(chosen.cluster.admin).runs(chosen.name)[:limit]


def store_frame(chosen: ChosenVersion, store: str, at: str) -> Any:
    """Return a state store as a DataFrame; see `read_store`."""
    from riverrun.spark.stores import read_store

    return read_store(chosen.connected(), store, chosen.cluster.sessions.session(), build_topology, at=at)


def write_store_to(
    chosen: ChosenVersion,
    store: str,
    target: str,
    form: str,
    *,
    at: str,
    options: Mapping[str, str] | None,
    packages: Sequence[str],
) -> int:
    """Write all rows of a state store to a target, and return their number.

    Args:
        chosen: The application.
        store: The store's name.
        target: A directory, or a table.
        form: A format that Spark knows.
        at: `latest`, an offset vector of the inputs, or the id of a run.
        options: The format's options.
        packages: Maven coordinates of libraries that the format needs.

    Raises:
        ConfigError: If the format does not exist.
    """
    from riverrun.spark.stores import export_store, write_store
    from riverrun.transfers.specs import check_format, writer_options

    sessions = chosen.cluster.sessions
    check_format(form, sessions.settings, packages)
    spark = sessions.session(packages)

    def write(frame: Any) -> int:
        return write_store(frame, target, form, writer_options(form, options or {}))

    return export_store(chosen.connected(), store, spark, build_topology, write, at=at)


def publish_state(chosen: ChosenVersion) -> list[Manifest]:
    """Publish the current state of all tasks, and return the manifests.

    Raises:
        ConfigError: If there is no `snapshot.url`.
    """
    from riverrun.hosting.standby_tasks import publish_snapshots

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
    from riverrun.hosting.local_state import directories_of

    return list(directories_of(chosen.application_id, state_dir or chosen.project.state_directory(chosen.config)))


def delete_local_state(chosen: ChosenVersion, state_dir: Path | None) -> list[Path]:
    """Delete its state on this machine, and return the deleted directories."""
    from riverrun.worker.reset import clean_up

    found = local_state(chosen, state_dir)
    clean_up(found)
    return found


def planned_skip(chosen: ChosenVersion, tp: TopicPartition, offset: int) -> Skip:
    """Return how one input record would be skipped."""
    from riverrun.hosting.skipping import plan_skip

    application = chosen.loaded()
    chosen.require_no_switch(application)
    return plan_skip(chosen.on_brokers(application), tp, offset)


def skip_record(chosen: ChosenVersion, planned: Skip) -> Skip:
    """Skip a record."""
    from riverrun.hosting.skipping import carry_out

    return carry_out(chosen.connected(), planned)
