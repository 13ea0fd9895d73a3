"""Files as sources and targets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


def has_files(name: str) -> bool:
    """Whether sources and targets of a format are files and nothing else.

    >>> has_files("Parquet"), has_files("jdbc")
    (True, False)
    """
    return name.lower() in _FORMATS


def escaped(path: str) -> str:
    r"""A path as Spark takes it, where what would be a pattern is meant as it is.

    >>> print(escaped("in/a b[1].json"))
    in/a b\[1\].json
    """
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def listing(spark: Any, path: str, options: Mapping[str, str]) -> Any:
    """A frame with the files below a path (`inputFiles`) and the columns of its directories; the files are not looked into.

    Args:
        spark: A Spark session.
        path: A directory, file or pattern.
        options: Of a reader: those that choose files have an effect.

    Raises:
        AnalysisException: Spark's, if there is nothing.
    """
    return spark.read.format("binaryFile").options(**options).load(path)
