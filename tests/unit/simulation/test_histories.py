"""Workers, bounded runs and releases publish each result once, though hosts die, hang and are slow, and requests are lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RELEASES = "tests.histories.releases"
MEMORY = Path("/dev/shm")  # noqa: S108 - `tempfile` makes its names there


def outcome(first: int, count: int = 1, *, of: str = "tests.histories") -> str:
    """Return what histories print. They have their own process: only with a fixed seed of hashes can they be repeated."""
    command = [sys.executable, "-m", of, str(first), str(count)]
    environment = {**os.environ, **in_memory(), "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def in_memory() -> dict[str, str]:
    """Settings by which hosts keep their stores in memory, if that has room: they wait for disks otherwise."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 30
    return {"TMPDIR": str(MEMORY)} if has_room else {}


def test_every_record_is_counted_once_in_some_histories() -> None:
    assert "3 histories" in outcome(1, 3)


def test_a_seed_makes_the_same_history_again() -> None:
    first, again = (outcome(4).splitlines()[:-1] for _ in range(2))
    assert first == again


def test_every_record_is_counted_once_where_workers_are_static_members() -> None:
    assert "2 histories" in outcome(20_000, 2)


def test_what_releases_make_public_is_right_in_some_histories() -> None:
    assert "3 histories" in outcome(4004, 3, of=RELEASES)


@pytest.mark.slow
def test_what_releases_make_public_is_right_in_more_histories() -> None:
    assert "12 histories" in outcome(5000, 12, of=RELEASES)


@pytest.mark.slow
def test_every_record_is_counted_once_in_more_histories() -> None:
    assert "40 histories" in outcome(100, 40)


@pytest.mark.slow
def test_every_record_is_counted_once_in_more_histories_of_static_members() -> None:
    assert "20 histories" in outcome(20_100, 20)
