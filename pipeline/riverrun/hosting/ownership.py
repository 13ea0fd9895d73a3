"""Ownership of tasks: a task belongs to the producer that last initialised its transactional id."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from riverrun.errors import OpenTransactionError
from riverrun.kafka.producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

_COMMIT_SECONDS = 10.0
"""How long a live owner may take to end a commit, which usually takes milliseconds."""


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
        log.warning("ending a transaction of %s that an earlier owner left open: %s", connected.id, error.message)
        fence_owners(connected.application, connected.resolved().layout.tasks)
        return connected.committed(asked)
