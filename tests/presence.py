"""Parts of records that a test counts on."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(part: T | None) -> T:
    """Return a key, a value or anything else that may be missing elsewhere, and must not be here."""
    assert part is not None
    return part
