"""Processed records of repartition topics are deleted now and then, and never at the expense of anything else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import BrokerError
from pipeline.hosting.purge import RepartitionPurge
from pipeline.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

TP = TopicPartition("app-words-repartition", 0)
INTERVAL_MS = 1000


@dataclass
class FakeAdmin:
    """Deletes when it is let, or fails."""

    fails: bool = False
    may_go_on: threading.Event = field(default_factory=threading.Event)
    deleted: list[dict[TopicPartition, int]] = field(default_factory=list)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        self.deleted.append(dict(before))
        assert self.may_go_on.wait(30)
        if self.fails:
            message = "brokers are away"
            raise BrokerError(message, retriable=True)


def purging(admin: Any) -> RepartitionPurge:
    purge = RepartitionPurge(admin, INTERVAL_MS)
    purge.run_if_due(0, dict)
    return purge


def wait(purge: RepartitionPurge) -> None:
    assert purge._thread is not None
    purge._thread.join(30)


def test_what_is_committed_is_deleted_once_per_interval() -> None:
    admin = FakeAdmin()
    admin.may_go_on.set()
    purge = purging(admin)
    purge.run_if_due(INTERVAL_MS - 1, lambda: {TP: 5})
    assert admin.deleted == []
    purge.run_if_due(INTERVAL_MS, lambda: {TP: 5})
    wait(purge)
    purge.run_if_due(INTERVAL_MS + 1, lambda: {TP: 6})
    purge.run_if_due(2 * INTERVAL_MS, lambda: {TP: 7})
    wait(purge)
    assert admin.deleted == [{TP: 5}, {TP: 7}]


def test_nothing_is_asked_of_brokers_where_nothing_was_processed() -> None:
    admin = FakeAdmin()
    admin.may_go_on.set()
    purge = purging(admin)
    purge.run_if_due(INTERVAL_MS, lambda: {TP: 5})
    wait(purge)
    purge.run_if_due(2 * INTERVAL_MS, lambda: {TP: 5})
    assert admin.deleted == [{TP: 5}]


def test_the_next_time_waits_for_the_last_one_to_end() -> None:
    admin = FakeAdmin()
    purge = purging(admin)
    purge.run_if_due(INTERVAL_MS, lambda: {TP: 5})
    purge.run_if_due(2 * INTERVAL_MS, lambda: {TP: 7})
    admin.may_go_on.set()
    wait(purge)
    assert admin.deleted == [{TP: 5}]


def test_what_failed_is_tried_again() -> None:
    admin = FakeAdmin(fails=True)
    admin.may_go_on.set()
    purge = purging(admin)
    purge.run_if_due(INTERVAL_MS, lambda: {TP: 5})
    wait(purge)
    purge.run_if_due(2 * INTERVAL_MS, lambda: {TP: 5})
    wait(purge)
    assert admin.deleted == [{TP: 5}, {TP: 5}]
