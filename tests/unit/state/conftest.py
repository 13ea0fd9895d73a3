"""Both backends, for every test of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun.state.memory import MemoryBackend
from riverrun.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "rocksdb"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the backend again, as after a restart."""
    opened: list[Any] = [MemoryBackend() if request.param == "memory" else RocksDbBackend(tmp_path / "0_0")]

    def again() -> Any:
        if request.param == "rocksdb":
            opened[0].close()
            opened[0] = RocksDbBackend(tmp_path / "0_0")
        return opened[0]

    yield again
    opened[0].close()


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def caching(request: pytest.FixtureRequest) -> bool:
    """Whether updates are held back."""
    return bool(request.param)
