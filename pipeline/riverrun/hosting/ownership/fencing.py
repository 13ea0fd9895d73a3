"""Ownership of a task: the producer that last initialised its transactional id owns it, and fences all others."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from riverrun.errors import OpenTransactionError, UnderWayError
from riverrun.hosting.ownership.sole_host import group_of, hosts_in
from riverrun.kafka.producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.ownership.sole_host import SoleHost
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_SECONDS = 10.0
"""How long a live owner may take to end a commit, which usually takes milliseconds."""
SOLE_SESSION_MS = 10_000
"""After this time without heartbeats, a bounded run or a worker without a group counts as dead."""
_WORKER_SESSION_MS = 45_000
_LOOK_SECONDS = 0.5


def transactional_id(application_id: str, task_id: TaskId) -> str:
    """Return the transactional id of a task; it allows only one owner among all processes."""
    return f"{application_id}-{task_id}"


def fence_owners(application: Application, task_ids: Iterable[TaskId]) -> None:
    """Fence the owners of tasks and abort their open transactions, without processing the tasks.

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
    """Return how long (ms) hosts of an application stay members after their last heartbeat: the default unless configured."""
    return int(application.config.streams.consumer.get("session.timeout.ms", default))


def under_way(application_id: str, host: SoleHost) -> UnderWayError:
    """Make the error that a bounded run, or a worker without a group, processes an application."""
    hint = "Wait for its end, or stop it. One that died counts until its session times out, within seconds."
    return UnderWayError(f"{application_id} is being processed by {host}", hint=hint)


def require_no_members(connected: ConnectedApplication) -> None:
    """Make sure that no worker processes an application: a fenced worker would only re-initialise its tasks.

    Raises:
        UnderWayError: If its group has members.
        BrokerError: If the brokers do not answer.
    """
    members = connected.admin.group(connected.id).members
    if members:
        message = f"{connected.id} is processing: its group has members: {', '.join(members)}"
        raise UnderWayError(message, hint="Stop its workers; one that died is a member until its session times out.")


def require_no_sole_host(connected: ConnectedApplication) -> None:
    """Make sure that no bounded run and no worker without a group processes an application.

    Raises:
        UnderWayError: If one does.
        BrokerError: If the brokers do not answer.
    """
    for host in hosts_in(connected.admin.group(group_of(connected.id)).members):
        raise under_way(connected.id, host)


def require_nobody(connected: ConnectedApplication) -> None:
    """Make sure that no worker and no bounded run processes an application.

    Raises:
        UnderWayError: If one does.
        BrokerError: If the brokers do not answer.
    """
    require_no_members(connected)
    require_no_sole_host(connected)


def await_no_members(connected: ConnectedApplication) -> None:
    """Wait until workers that have died are no longer members.

    Raises:
        UnderWayError: If the group still has members after a session.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_members(connected), session_ms(connected.application, _WORKER_SESSION_MS))


def await_no_sole_host(connected: ConnectedApplication) -> None:
    """Wait for up to a session until no bounded run and no worker without a group processes an application.

    Raises:
        UnderWayError: If one still does after a session.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_sole_host(connected), session_ms(connected.application, SOLE_SESSION_MS))


def _wait(check: Callable[[], None], session: int) -> None:
    """Repeat a check until it passes, for as long as dead members may still count as alive."""
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

    They are unknown after an owner has died during a commit. In that case fences all tasks, which ends the commit.

    Raises:
        TopicError: If topics are missing.
        BrokerError: If the brokers do not answer.
    """
    asked = list(tps)
    try:
        return connected.admin.committed(connected.id, asked, _COMMIT_SECONDS)
    except OpenTransactionError as error:
        log.warning("a commit of %s was left open, and is ended now: %s", connected.id, error.message)
        fence_owners(connected.application, connected.resolved().layout.tasks)
        return connected.committed(asked)
