"""Groups of instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.system.groups import PARTITIONS, Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group(broker: Any, unique: str, tmp_path: Path) -> Iterator[Group]:
    broker.create(PARTITIONS, f"{unique}.in", f"{unique}.out")
    group = Group(broker, unique, tmp_path)
    yield group
    for instance in group.instances:
        if instance.poll() is None:
            instance.kill()
            instance.wait()
