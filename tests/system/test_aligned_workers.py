"""Instances that process a skewed backlog together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.skewed import counts_in, write_backlog

if TYPE_CHECKING:
    from tests.brokers import Broker
    from tests.system.groups import Group

pytestmark = pytest.mark.broker


def test_instances_count_a_skewed_backlog_exactly_though_one_is_killed(group: Group, broker: Broker) -> None:
    expected = write_backlog(broker, f"{group.name}.in")
    for _ in range(2):
        group.start("--threads", "2", build="build_windowed")
    group.until(lambda: bool(counts_in(broker, f"{group.name}.out")), "counted anything")
    group.instances[0].kill()
    total = sum(expected.values())
    group.until(lambda: sum(counts_in(broker, f"{group.name}.out").values()) >= total, "counted everything")
    assert counts_in(broker, f"{group.name}.out") == expected
