"""Fields that have no type in SQL."""

from __future__ import annotations


class UnsupportedFieldError(Exception):
    """A field that has no type in SQL, with the names that lead to it."""

    def __init__(self, path: tuple[str, ...], why: str) -> None:
        """Keep both for the message."""
        super().__init__(f"field {'.'.join(path)}: {why}" if path else why)
