"""Creates data directories that other users of a machine cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MODE = 0o750
_GROUP_WRITES = 0o770


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, readable for this user and its group.

    An existing directory is left unchanged.

    Raises:
        OSError: If it cannot be created, or a file is in its place.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        path.mkdir(_MODE)
    except FileExistsError:
        if not path.is_dir():  # else another process created it first
            raise


def close_to_others(path: Path, *, group_writes: bool = False) -> None:
    """Take a directory's permissions from other users, if this user owns it.

    Args:
        path: The directory; created if missing.
        group_writes: Whether the group may write (`allow.os.group.write.access`).

    Raises:
        OSError: If it cannot be created.
    """
    make_directory(path)
    mode = _GROUP_WRITES if group_writes else _MODE
    try:
        path.chmod(mode)
    except PermissionError:  # owned by another user, who grants access
        return
