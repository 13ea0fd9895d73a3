"""Directories that hold data: other users of a machine do not read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MODE = 0o750
_GROUP_WRITES = 0o770


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, for this user and its group to read.

    One that is there is left as it is.

    Raises:
        OSError: If it cannot be made, or something else is there.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        path.mkdir(_MODE)
    except FileExistsError:
        if not path.is_dir():  # else somebody else was faster
            raise


def close_to_others(path: Path, *, group_writes: bool = False) -> None:
    """Take a directory from other users, if it is ours to take.

    Args:
        path: The directory; made if there is none.
        group_writes: Whether the group may write (`allow.os.group.write.access`).

    Raises:
        OSError: If it cannot be made.
    """
    make_directory(path)
    mode = _GROUP_WRITES if group_writes else _MODE
    try:
        path.chmod(mode)
    except PermissionError:  # another user's, who lets this one in
        return
