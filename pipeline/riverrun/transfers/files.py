"""Files as sources and targets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


def has_files(name: str) -> bool:
    """Return whether a format's sources and targets are plain files.

    >>> has_files("Parquet"), has_files("jdbc")
    (True, False)
    """
    return name.lower() in _FORMATS


def escaped(path: str) -> str:
    r"""Escape a path for Spark, so that it is not read as a pattern.

    >>> print(escaped("in/a b[1].json"))
    in/a b\[1\].json
    """
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def listing(spark: Any, path: str, options: Mapping[str, str]) -> Any:
    """Return a frame with the files below a path (`inputFiles`) and the columns of its directories, without reading the files.

    Args:
        spark: A Spark session.
        path: A directory, file or pattern.
        options: Options of the reader; those that select files have an effect.

    Raises:
        AnalysisException: Spark's error, if there are no files.
    """
    return spark.read.format("binaryFile").options(**options).load(path)
