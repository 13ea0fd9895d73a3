"""Writes since the last commit, laid over a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.state.api import Table


def prefix_end(prefix: bytes) -> bytes | None:
    r"""The smallest key above all keys with that prefix; None if there is none.

    >>> prefix_end(b"a\xff")
    b'b'
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def merged_scan(
    pending: Mapping[bytes, bytes | None],
    table: Table,
    lower: bytes | None,
    upper: bytes | None,
    *,
    reverse: bool = False,
) -> Iterator[tuple[bytes, bytes]]:
    """Entries of a table with pending writes applied, `lower <= key < upper`, in key order."""
    changed = sorted(
        (key for key in pending if (lower is None or key >= lower) and (upper is None or key < upper)), reverse=reverse
    )
    at = 0
    for key, value in table.scan(lower, upper, reverse=reverse):
        while at < len(changed) and (changed[at] > key if reverse else changed[at] < key):
            written = pending[changed[at]]
            if written is not None:
                yield changed[at], written
            at += 1
        if at < len(changed) and changed[at] == key:
            written = pending[key]
            at += 1
            if written is not None:
                yield key, written
        else:
            yield key, value
    for key in changed[at:]:
        written = pending[key]
        if written is not None:
            yield key, written
