"""Writes records as text for inspection (`KStreamPrint`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from riverrun.arguments import refuse_unstarted
from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TextIO

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers


class Print:
    """Writes a line `[label]: text` per record, to standard output or to a file.

    Args:
        label: Text before each record.
        mapper: `(key, value) -> text`.
        path: The file to append to; None for standard output.

    Raises:
        TopologyError: In `init`, if the file cannot be written.
    """

    def __init__(self, label: str, mapper: Callable[[Any, Any], str], path: Path | None) -> None:
        self._label = label
        self._mapper = mapper
        self._path = path
        self._file: TextIO | None = None

    def init(self, context: OperatorContext) -> None:  # noqa: ARG002 - forwards nothing
        """Open the file."""
        if self._path is None:
            return
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            message = f"Unable to write stream to file at [{self._path}]: {error}"
            raise TopologyError(message) from error

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - an operator
        """Write one line."""
        text = self._mapper(key, value)
        refuse_unstarted(text, "The mapper of print()")
        print(f"[{self._label}]: {text}", file=self._file or sys.stdout, flush=self._file is None)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
