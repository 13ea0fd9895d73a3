"""Shares what checks write with the group of the directory above, whose members judge the same application."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from riverrun.config.secrets import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_shared_directory(path: Path) -> None:
    """Create a directory and its missing parents, which the group may write to if it may write to the one above."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    make_directory(path)
    for each in reversed(missing):
        share_with_group(each)


def share_with_group(path: Path) -> None:
    """Let the group write to a file or directory of this user if it may write to the directory above."""
    with suppress(OSError), _opened(path.parent) as above:
        _share(path.name, above)


def share_below(directory: Path) -> None:
    """Share all that is below a directory. Others may remove it, or put links there, at the same time."""
    # Parents come first. Links are not followed.
    for _, directories, files, above in os.fwalk(directory):
        for name in (*directories, *files):
            _share(name, above)


def _share(name: str, above: int) -> None:
    # It is gone, a link, or another user's, who decides about access.
    with suppress(OSError), _opened(name, above) as descriptor:
        mine, parent = os.fstat(descriptor), os.fstat(above)
        if _is_shared(parent) and _is_readable(mine) and mine.st_gid == parent.st_gid:
            os.fchmod(descriptor, stat.S_IMODE(mine.st_mode) | stat.S_IWGRP)


def _is_shared(directory: os.stat_result) -> bool:
    # All users write to a sticky directory (/tmp): nobody chose its group.
    return bool(directory.st_mode & stat.S_IWGRP) and not directory.st_mode & stat.S_ISVTX


def _is_readable(found: os.stat_result) -> bool:
    """Return whether the group may read a file or directory: a umask may have taken this right from it."""
    if stat.S_ISDIR(found.st_mode):
        needed = stat.S_IRGRP | stat.S_IXGRP
    elif stat.S_ISREG(found.st_mode):
        needed = stat.S_IRGRP
    else:
        return False
    return found.st_mode & needed == needed


@contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    # Links may lead anywhere, and opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if above is None else os.O_NOFOLLOW), dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
