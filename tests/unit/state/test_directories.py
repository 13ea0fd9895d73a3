"""Data that other users of a machine can read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from riverrun.hosting.local_state import locked
from riverrun.kafka.embedded.broker import EmbeddedBroker
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.state.snapshots import Manifest, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_state_is_closed_to_other_users_with_all_that_is_made_for_it(tmp_path: Path) -> None:
    backend = RocksDbBackend(tmp_path / "state" / "app-v1" / "0_0")
    backend.checkpoint(tmp_path / "copies" / "checkpoint")
    backend.close()
    made = [tmp_path / "state", tmp_path / "state/app-v1", tmp_path / "state/app-v1/0_0", tmp_path / "copies"]
    assert [mode(path) for path in made] == ["0o750"] * 4


def test_a_directory_that_was_open_to_others_is_closed_when_an_instance_starts(tmp_path: Path) -> None:
    (tmp_path / "state" / "app-v1").mkdir(parents=True)
    with locked(tmp_path / "state" / "app-v1"):
        assert mode(tmp_path / "state" / "app-v1") == "0o750"
    with locked(tmp_path / "state" / "app-v1", group_writes=True):
        assert mode(tmp_path / "state" / "app-v1") == "0o770"
    assert mode(tmp_path / "state") == "0o755", "it was there, and may be others' as well"


def test_snapshots_at_a_path_are_closed_to_other_users_and_so_is_what_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "a").write_text("1")
    store = SnapshotStore(str(tmp_path / "snapshots" / "app-v1" / "0_0"), keep=1)
    found = store.publish(tmp_path / "checkpoint", Manifest("app-v1", "0_0", "f", 1, {}, {}, {}))
    store.fetch(found, tmp_path / "fetched" / "0_0")
    made = [tmp_path / "snapshots", tmp_path / "snapshots/app-v1/0_0", tmp_path / "fetched", tmp_path / "fetched/0_0"]
    assert [mode(path) for path in made] == ["0o750"] * 4


def test_the_embedded_brokers_data_and_logs_are_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with EmbeddedBroker(tmp_path / "broker", tmp_path, 0)._locked():
        assert mode(tmp_path / "broker") == "0o750"
