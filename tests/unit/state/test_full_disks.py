"""A disk that is full when a table is made: an error that says so, and no traceback of the library's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import StateError
from riverrun.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from pathlib import Path


class Full:
    """A database on a disk without space.

    Args:
        database: The real one.
    """

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def create_column_family(self, *_: Any) -> Any:
        message = "IO error: No space left on device"
        raise Exception(message)  # noqa: TRY002 - what the library raises


def test_a_table_that_cannot_be_made_on_a_full_disk_says_so(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path / "0_0")
    database = backend._db
    backend._db = Full(database)
    with pytest.raises(StateError, match="No space left on device") as raised:
        backend.write({"counts": {b"k": b"v"}}, {})
    assert raised.value.hint is not None
    assert "Is the disk full" in raised.value.hint
    backend._db = database
    backend.close()
