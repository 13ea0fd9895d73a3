"""Rows of a single text, the form in which executors return results to Spark."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSETS = struct.Struct("=ii")


def text_row(column: str, text: str) -> pa.RecordBatch:
    """Return a batch of one row with one text.

    The batch is laid out byte by byte, as Arrow would do it. Making an array of Python objects loads pandas first, which
    takes more than half of the start of a Spark Python process.

    >>> text_row("result", "größe").to_pylist()
    [{'result': 'größe'}]
    """
    import pyarrow as pa  # noqa: PLC0415 - workers import this module to plan runs, and have no pyarrow

    data = text.encode()
    offsets = _OFFSETS.pack(0, len(data))
    array = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([array], [column])
