"""Rows to judge, which several processes write below one directory."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import StateError
from riverrun.quality.frames import passing_frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIES = """
import os, sys
from pathlib import Path
from riverrun.quality.frames import passing_frame
with passing_frame(Path(sys.argv[1]), [{"n": 5}]):
    os._exit(3)
"""


def test_checks_at_once_have_their_own_rows_and_leave_none(tmp_path: Path) -> None:
    def rows(n: int) -> Iterator[dict[str, int]]:
        yield {"n": n}
        # Another check begins and ends while this one writes.
        if n:
            with passing_frame(tmp_path, rows(n - 1)) as inner:
                assert inner.pandas(["n"])["n"].tolist() == [n - 1] * (2 if n > 1 else 1)
            yield {"n": n}

    with passing_frame(tmp_path, rows(2)) as frame:
        assert frame.pandas(["n"])["n"].tolist() == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_rows_of_a_process_that_died_are_deleted_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    with passing_frame(tmp_path, [{"n": 1}]) as living:
        assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False).returncode == 3
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
        with passing_frame(tmp_path, [{"n": 2}]):
            assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
        assert living.pandas(["n"])["n"].tolist() == [1]


@pytest.mark.parametrize(("mode", "made"), [(0o770, "770"), (0o750, "750")])
def test_rows_are_shared_with_a_group_as_the_directory_above_is(tmp_path: Path, mode: int, made: str) -> None:
    tmp_path.chmod(mode)
    with passing_frame(tmp_path / "quality" / "gate", [{"n": 1}]) as frame:
        paths = (tmp_path / "quality", tmp_path / "quality" / "gate", frame.directory)
        assert [f"{path.stat().st_mode & 0o777:o}" for path in paths] == [made] * 3
        locks = [path / ".lock" for path in paths[1:]]
        assert [bool(path.stat().st_mode & 0o020) for path in locks] == [mode == 0o770] * 2


def test_rows_are_judged_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_file: object, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    (tmp_path / "left").mkdir()
    monkeypatch.setattr(fcntl, "flock", flock)
    with passing_frame(tmp_path, [{"n": 1}]) as frame:
        assert frame.pandas(["n"])["n"].tolist() == [1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["left"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StateError, match=r"The rows to judge cannot be written to .*file/frames"),
        passing_frame(tmp_path / "file" / "frames", []),
    ):
        pass
