"""Windows behind a repartition whose first owner is killed, after their partitions have moved away from it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING
from riverrun.serde.windowed import windowed
from tests.presence import present
from tests.system.groups import PARTITIONS, WORDS, tasks_taken

if TYPE_CHECKING:
    from tests.system.groups import Group

pytestmark = pytest.mark.broker


def last_counts(group: Group) -> dict[tuple[str, int], int]:
    """The last count of each word and window."""
    keys = windowed(STRING, timedelta(seconds=30))
    found = {}
    for record in group.broker.read(f"{group.name}.out"):
        key = keys.deserialize(present(record.key))
        found[key.key, key.window.start] = LONG.deserialize(present(record.value))
    return found


def test_windows_are_exact_when_their_first_owner_dies_after_they_moved(group: Group) -> None:
    first = group.start(build="build_windowed")
    group.write(2300)
    group.until(lambda: sum(last_counts(group).values()) >= 2300, "counted")
    group.start(build="build_windowed")
    group.until(lambda: len(tasks_taken(group.log(1))) >= PARTITIONS, "took half of the tasks")
    group.write(1150)
    first.kill()
    first.wait()
    group.write(1150)
    group.until(lambda: sum(last_counts(group).values()) >= group.written, "went on")
    assert last_counts(group) == {(word, 0): group.written // len(WORDS) for word in WORDS}
