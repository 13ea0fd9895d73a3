"""Lets workers process what an application has not processed yet, or else a bounded run."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from riverrun.hosting.inputs import input_lags
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.config.streams import StreamsConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange

log = logging.getLogger(__name__)

_POLL_SECONDS = 2.0


class PlannedRun(Protocol):
    """A bounded run over what is not processed yet."""

    range: RunRange

    @property
    def application(self) -> Application:
        """The application that processes the range."""
        ...

    @property
    def admin(self) -> Admin:
        """The client that asks the brokers."""
        ...

    def run(self) -> RunSummary:
        """Process the range, exactly once."""
        ...


def process(name: str, streams: StreamsConfig, rest: Callable[[], PlannedRun]) -> RunSummary | None:
    """Wait until workers have processed the rest, or process it in a bounded run.

    Args:
        name: The application.
        streams: Its settings, which say how long workers may take to commit.
        rest: Returns the run over what is left now.

    Returns:
        The run; None if nothing was left to it.
    """
    left = rest()
    if left.range.size and left.admin.group(left.application.id).members:
        log.warning("%s: workers process the rest of the interval: waiting for them", name)
        ends = {tp: each.end for tp, each in left.range.ranges.items() if each.size}
        if _is_left_to_workers(left.admin, left.application.id, streams, ends):
            return None
        left = rest()
    return left.run() if left.range.size else None


def drain(connected: ConnectedApplication, rest: Callable[[], PlannedRun]) -> RunSummary | None:
    """Process what is in repartition topics now, and all that follows from it in further ones.

    Args:
        connected: The application, which has processed its other topics.
        rest: As in `process`.
    """
    streams, admin = connected.application.config.streams, connected.admin
    internal = {each.tp for each in input_lags(connected) if each.is_internal}
    # A record passes each repartition topic once, and twice if a join by a foreign key asks again.
    for _ in range(2 * len({tp.topic for tp in internal})):
        ends = {tp: end for tp, end in admin.stable_end_offsets(internal).items() if end}
        if not _is_left_to_workers(admin, connected.id, streams, ends):
            # If workers are alive, the run says that they are in its way.
            return rest().run() if any(each.lag for each in input_lags(connected) if each.is_internal) else None
    return None


def _is_left_to_workers(admin: Admin, group: str, streams: StreamsConfig, ends: Mapping[TopicPartition, int]) -> bool:
    """Wait until workers have reached offsets. Return False if they end before, or process nothing for long."""
    # Workers that have died or are paused process nothing: the run reports what is in its way.
    patience_s = max(streams.task_timeout_ms, 2 * streams.commit_interval_ms) / 1000
    found, since_s = dict[TopicPartition, tuple[int, str]](), time.monotonic()
    with closing(admin.progress_of(group)) as progress:
        while admin.group(group).members and time.monotonic() - since_s <= patience_s:
            before, found = found, progress.committed(ends)
            if all(tp in found and found[tp][0] >= end for tp, end in ends.items()):
                return True
            if found != before:
                since_s = time.monotonic()
            time.sleep(_POLL_SECONDS)
    return False
