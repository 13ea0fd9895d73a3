"""Files on file stores that other processes have written: which may be read, and documents that contain their digest.

A file belongs to a directory on a store if it is a regular file there, and no symbolic link leads to it. So nobody reads a
device or a pipe, or writes and removes elsewhere. Documents, such as manifests, are JSON objects. Their first field is the
digest of all other bytes, so that a changed byte is noticed before any of them is believed.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.decoders import LONGEST_RECORD, UnreadableError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_FIELD = b'{"sha256":'
_SEALED = re.compile(rb'\{"sha256":"([0-9a-f]{64})",')


def store_at(url: str) -> tuple[Any, str]:
    """Return the file store of a URL of fsspec, or of a path, and the place there; each kind of store raises its own errors."""
    import fsspec

    files, place = fsspec.url_to_fs(url)
    # A store would take the first part of each path below it for a bucket.
    if not place:
        message = "it names no bucket and no directory"
        raise UnreadableError(message)
    return files, place


def make_directories(files: Any, place: str) -> None:
    """Make a directory where a store has them; the bucket of an object store must exist."""
    # fsspec would create a bucket that is misspelt.
    if has_directories(files, place):
        files.makedirs(place, exist_ok=True)
    else:
        require_bucket(files, place)


def has_directories(files: Any, place: str) -> bool:
    """Return whether a store has directories without files; paths in object stores, which have none, begin with a bucket."""
    return is_local(files) or place.startswith("/")


def require_bucket(files: Any, place: str) -> None:
    """Make sure that an object store has the bucket of a place."""
    bucket = place.partition("/")[0]
    # The right to write, or to read, may come without the right to look.
    with suppress(PermissionError):
        if files.exists(bucket):
            return
        # That is also the answer if a store is out of reach, or if it only says what is in a bucket. A listing says which.
        try:
            files.ls(bucket, detail=False)
        except FileNotFoundError as error:
            message = f"there is no bucket {bucket}"
            raise UnreadableError(message) from error


def is_local(files: Any) -> TypeIs[Any]:
    """Return whether a file store of fsspec is a local disk."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)


def require_no_links(files: Any, root: str, place: str) -> None:
    """Make sure that no symbolic link lies between a directory and a place below it, which need not exist."""
    # The directory itself may be a link: whoever set it up is trusted, other than those who write into it.
    if is_local(files) and Path(place).resolve() != Path(root).resolve() / Path(place).relative_to(root):
        raise UnreadableError("a symbolic link leads to it")


def described(files: Any, root: str, place: str) -> dict[str, Any]:
    """Return what a file store says about a file below a directory, such as its `size` in bytes.

    Each kind of store raises its own errors if the file is missing, or the store does not answer.
    """
    require_no_links(files, root, place)
    found: dict[str, Any] = files.info(place)
    if found["type"] != "file":
        raise UnreadableError("it is not a regular file")
    return found


def read_document(files: Any, root: str, place: str, longest: int = LONGEST_RECORD) -> bytes:
    """Return the bytes of a document below a directory, without its digest; errors are those of `described`."""
    # Before reading: another process may have written gigabytes there.
    size = described(files, root, place)["size"]
    if size > longest:
        raise UnreadableError(f"it has {size} bytes, and at most {longest} are read")
    return unsealed(files.cat_file(place))


def sealed(document: bytes) -> bytes:
    """Return a JSON object with the digest of its bytes as its first field.

    >>> unsealed(sealed(b'{"number":1}'))
    b'{"number":1}'
    >>> unsealed(sealed(b'{"number":1}').replace(b"1}", b"2}"))
    Traceback (most recent call last):
    riverrun.decoders.UnreadableError: its bytes have another digest than it says
    """
    return _FIELD + b'"%s",' % hashlib.sha256(document).hexdigest().encode() + document[1:]


def unsealed(data: bytes) -> bytes:
    """Return a JSON object without its digest."""
    # Written by an earlier version of Riverrun, which had no digests.
    if not data.startswith(_FIELD):
        return data
    found = _SEALED.match(data)
    document = b"{" + data[found.end() :] if found else b""
    if not found or hashlib.sha256(document).hexdigest().encode() != found[1]:
        raise UnreadableError("its bytes have another digest than it says")
    return document
