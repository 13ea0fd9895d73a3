"""Creates files that appear at once and complete, and only if there is none of their name: of two writers one is refused."""

from __future__ import annotations

import inspect
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

LEFTOVER = ".tmp"
"""Suffix of a file that a dead writer has not completed. Its name begins with a dot."""


def creator(files: Any, place: str) -> Callable[[str, bytes], None]:
    """Return the function that creates a whole file at a path, or raises `FileExistsError`; `place` is for messages."""
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(files, LocalFileSystem):
        return _link
    kind = type(files)
    own = [method for method in (kind.pipe_file, getattr(kind, "_pipe_file", None)) if _is_own(method)]
    if not any("mode" in inspect.signature(method).parameters for method in own):
        message = f"The file store of {place} cannot create a file only if there is none"
        raise ConfigError(message, hint="Use a local directory, S3, Google Cloud Storage or Azure Blob Storage.")
    return lambda path, data: files.pipe_file(path, data, mode="create")


def _is_own(method: Any) -> TypeIs[Callable[..., Any]]:
    # fsspec's general implementation of `mode="create"` checks first and writes later, so two writers could both succeed.
    return method is not None and not method.__module__.startswith(("fsspec.spec", "fsspec.asyn"))


def _link(path: str, data: bytes) -> None:
    """Create a file as a hard link to one that is complete and on the disk."""
    place = Path(path)
    begun = place.parent / f".{place.name}.{uuid.uuid4().hex[:8]}{LEFTOVER}"
    try:
        with begun.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link refuses an existing name.
        try:
            os.link(begun, place)
        # Another writer takes an unfinished file for that of a dead one, and removes it: this one has lost.
        except FileNotFoundError as error:
            message = f"Another writer has removed {begun.name}"
            raise FileExistsError(message) from error
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            message = f"{place.parent} cannot hold hard links, by which files appear at once: {error.strerror}"
            raise ConfigError(
                message, hint="Choose a directory on another file system, or the URL of its store."
            ) from error
    finally:
        begun.unlink(missing_ok=True)
    # The name itself survives a power failure only if the directory is on the disk.
    flush(place.parent)


def flush(place: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
