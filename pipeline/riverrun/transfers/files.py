"""Files as sources and targets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITTEN = {
    "csv": {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
    "json": {"ignoreNullFields": "false"},
}
"""Options with which Spark writes everything that it is given: by default it trims texts, and leaves nulls out."""
_FORMATS = frozenset({"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"})


def has_files(name: str) -> bool:
    """Return whether a format's sources and targets are plain files.

    >>> has_files("Parquet"), has_files("jdbc")
    (True, False)
    """
    return name.lower() in _FORMATS


def writer_options(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a format's writer, so that an import reads back what is written. Given options take precedence.

    >>> writer_options("CSV", {"ESCAPE": "x"})
    {'ignoreLeadingWhiteSpace': 'false', 'ignoreTrailingWhiteSpace': 'false', 'ESCAPE': 'x'}
    """
    known = {option.lower() for option in given}
    own = _WRITTEN.get(name.lower(), {})
    return {option: value for option, value in own.items() if option.lower() not in known} | dict(given)


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
