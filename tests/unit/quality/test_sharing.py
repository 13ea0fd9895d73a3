"""Files and directories that checks share with a group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from riverrun.config.secrets import make_directory
from riverrun.quality.sharing import make_shared_directory, share_below, share_with_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "docs"
    directory.mkdir()
    directory.chmod(0o770)
    return directory


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_files_and_directories_are_shared_as_the_one_above_is(shared: Path) -> None:
    make_directory(shared / "a" / "b")
    (shared / "a" / "b" / "page.html").write_text("x")
    share_below(shared)
    assert [mode(path) for path in sorted(shared.rglob("*"))] == ["0o770", "0o770", "0o664"]


def test_nothing_is_shared_below_a_directory_that_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_shared_directory(tmp_path / "a" / "b")
    share_below(tmp_path)
    assert [mode(path) for path in sorted(tmp_path.rglob("*"))] == ["0o750", "0o750"]


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def link_to_its_directory(path: Path, secret: Path) -> None:
    path.symlink_to(secret.parent)


def dangling_link(path: Path, _secret: Path) -> None:
    path.symlink_to("gone")


def pipe(path: Path, _secret: Path) -> None:
    os.mkfifo(path, 0o640)


@pytest.mark.parametrize("put", [link, link_to_its_directory, dangling_link, pipe])
def test_what_others_put_there_reaches_no_file_elsewhere(
    tmp_path: Path, shared: Path, put: Callable[[Path, Path], None]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    make_directory(elsewhere)
    secret = elsewhere / "authorized_keys"
    secret.write_text("secret")
    secret.chmod(0o640)
    put(shared / "z", secret)
    (shared / "z.html").write_text("page")
    share_below(shared)
    share_with_group(shared / "z")
    assert (mode(secret), mode(elsewhere)) == ("0o640", "0o750")
    assert mode(shared / "z.html") == "0o664"


def test_a_umask_that_takes_rights_from_the_group_is_respected(shared: Path) -> None:
    os.umask(0o077)
    make_shared_directory(shared / "a")
    (shared / "page").write_text("x")
    share_below(shared)
    assert (mode(shared / "a"), mode(shared / "page")) == ("0o700", "0o600")


def test_a_sticky_directory_shares_nothing(shared: Path) -> None:
    shared.chmod(0o1777)
    make_shared_directory(shared / "a")
    assert mode(shared / "a") == "0o750"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file to any group")
def test_another_group_than_that_of_the_directory_above_gets_no_rights(shared: Path) -> None:
    (shared / "page").write_text("x")
    os.chown(shared / "page", -1, 12345)
    share_below(shared)
    assert mode(shared / "page") == "0o644"


def test_state_is_not_shared_whatever_the_directory_above_is(shared: Path) -> None:
    make_directory(shared / "state")
    assert mode(shared / "state") == "0o750"
