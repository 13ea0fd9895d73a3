"""Rows of a single text, as executors hand their results to Spark."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSETS = struct.Struct("=ii")


def text_row(column: str, text: str) -> pa.RecordBatch:
    """A batch of one row with one text.

    Made of its bytes, as Arrow would lay it out: whatever makes an array of Python's objects loads pandas first, which is more
    than half of what a Python process of Spark takes to start.

    >>> text_row("result", "größe").to_pylist()
    [{'result': 'größe'}]
    """
    import pyarrow as pa  # noqa: PLC0415 - workers have none, and import this with all that plans runs

    data = text.encode()
    offsets = _OFFSETS.pack(0, len(data))
    array = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([array], [column])
