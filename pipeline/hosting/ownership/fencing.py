"""Ownership of a task: the producer that initialised its transactional id last, and fences all others."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pipeline.errors import OpenTransactionError, UnderWayError
from pipeline.hosting.ownership.sole_host import group_of, hosts_in
from pipeline.kafka.producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.hosting.application import Application
    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.hosting.ownership.sole_host import SoleHost
    from pipeline.kafka.admin import CommittedOffset
    from pipeline.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_SECONDS = 10.0
"""How long an owner that lives may take to end a commit, which takes milliseconds."""
SOLE_SESSION_MS = 10_000
"""Without heartbeats for so long, a bounded run or a worker that is alone counts as dead."""
_WORKER_SESSION_MS = 45_000
_LOOK_SECONDS = 0.5


def transactional_id(application_id: str, task_id: TaskId) -> str:
    """Names the one owner a task may have, in whatever process."""
    return f"{application_id}-{task_id}"


def fence_owners(application: Application, task_ids: Iterable[TaskId]) -> None:
    """Fence the owners of tasks, and abort what they have open, without going on with them.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    for task_id in task_ids:
        owner = TransactionalProducer(application.kafka, transactional_id(application.id, task_id))
        try:
            owner.init()
        finally:
            owner.close()


def session_ms(application: Application, default: int) -> int:
    """Return how long hosts of an application count as members after their last heartbeat, unless the default holds."""
    return int(application.config.streams.consumer.get("session.timeout.ms", default))


def under_way(application_id: str, host: SoleHost) -> UnderWayError:
    """Make the error that a run, or a worker that is alone, processes an application."""
    hint = "Wait for its end, or stop it. One that died counts until its session times out, within seconds."
    return UnderWayError(f"{application_id} is being processed by {host}", hint=hint)


def require_no_members(connected: ConnectedApplication) -> None:
    """Make sure that no worker processes an application: being fenced, it would only take its tasks over again.

    Raises:
        UnderWayError: If its group has members.
        BrokerError: If the brokers do not answer.
    """
    members = connected.admin.group(connected.id).members
    if members:
        message = f"{connected.id} is processing: its group has members: {', '.join(members)}"
        raise UnderWayError(message, hint="Stop its workers; one that died is a member until its session times out.")


def require_no_sole_host(connected: ConnectedApplication) -> None:
    """Make sure that neither a bounded run, nor a worker that is alone, processes an application.

    Raises:
        UnderWayError: If one does.
        BrokerError: If the brokers do not answer.
    """
    for host in hosts_in(connected.admin.group(group_of(connected.id)).members):
        raise under_way(connected.id, host)


def require_nobody(connected: ConnectedApplication) -> None:
    """Make sure that nothing processes an application: no worker, and no bounded run.

    Raises:
        UnderWayError: If something does.
        BrokerError: If the brokers do not answer.
    """
    require_no_members(connected)
    require_no_sole_host(connected)


def await_no_members(connected: ConnectedApplication) -> None:
    """Wait until workers that have died are members no more.

    Raises:
        UnderWayError: If its group has members for longer than a session.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_members(connected), session_ms(connected.application, _WORKER_SESSION_MS))


def await_no_sole_host(connected: ConnectedApplication) -> None:
    """Wait until a run, or a worker that was alone, has ended, if it dies or ends within a session.

    Raises:
        UnderWayError: If it processes for longer.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_sole_host(connected), session_ms(connected.application, SOLE_SESSION_MS))


def _wait(check: Callable[[], None], session: int) -> None:
    """Check until it passes, for as long as members that have died may be taken for living ones."""
    deadline, is_told = time.monotonic() + session / 1000 + 2 * _LOOK_SECONDS, False
    while True:
        try:
            check()
        except UnderWayError as error:
            if time.monotonic() > deadline:
                raise
            if not is_told:
                is_told = True
                log.warning("%s; waiting for its end for %d s, as it may have died", error.message, session // 1000)
        else:
            return
        time.sleep(_LOOK_SECONDS)


def settled_offsets(
    connected: ConnectedApplication, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of some inputs.

    After an owner has died in a commit they are unknown. All tasks are fenced then, which ends the commit.

    Raises:
        TopicError: If topics are missing.
        BrokerError: If the brokers do not answer.
    """
    asked = list(tps)
    try:
        return connected.admin.committed(connected.id, asked, _COMMIT_SECONDS)
    except OpenTransactionError as error:
        log.warning("somebody has left a commit of %s open, which is ended now: %s", connected.id, error.message)
        fence_owners(connected.application, connected.resolved().layout.tasks)
        return connected.committed(asked)
