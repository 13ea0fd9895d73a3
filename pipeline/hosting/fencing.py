"""Who owns a task: the producer that has initialised its transactional id last, which fences all others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pipeline.errors import OpenTransactionError, UnderWayError
from pipeline.hosting.application import source_partitions, with_partitions
from pipeline.kafka.producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin, CommittedOffset
    from pipeline.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_SECONDS = 10.0
"""How long an owner that lives may take to end a commit, which takes milliseconds."""


def transactional_id(application_id: str, task_id: TaskId) -> str:
    """Names the one owner a task may have, in whatever process."""
    return f"{application_id}-{task_id}"


def fence_owners(application: Application, task_ids: Iterable[TaskId]) -> None:
    """Take tasks from whoever has them, and abort what they have open, without going on with them.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    for task_id in task_ids:
        owner = TransactionalProducer(application.kafka, transactional_id(application.id, task_id))
        try:
            owner.init()
        finally:
            owner.close()


def require_no_members(application: Application, admin: Admin) -> None:
    """Make sure that no worker processes an application: being fenced, it would only take its tasks over again.

    Raises:
        UnderWayError: If its group has members.
        BrokerError: If the brokers do not answer.
    """
    members = admin.group(application.id).members
    if members:
        message = f"{application.id} is processing: its group has members: {', '.join(members)}"
        raise UnderWayError(message, hint="Stop its workers; one that died is a member until its session times out.")


def settled_offsets(
    application: Application, admin: Admin, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    """What is committed of some inputs. If an owner has died in a commit, it cannot be said: all tasks are fenced then.

    Raises:
        TopicError: If topics are missing.
        BrokerError: If the brokers do not answer.
    """
    asked = list(tps)
    try:
        return admin.committed(application.id, asked, _COMMIT_SECONDS)
    except OpenTransactionError as error:
        log.warning("somebody has left a commit of %s open, which is ended now: %s", application.id, error.message)
        _, layout = with_partitions(application, source_partitions(application, admin))
        fence_owners(application, layout.tasks)
        return admin.committed(application.id, asked)
