"""The formats that Spark reads and writes: their names, and the options with which nothing is lost."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# By default, Spark trims texts and leaves nulls out; an import could not read back what was exported.
_WRITTEN = {
    "csv": {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
    "json": {"ignoreNullFields": "false"},
}
"""Options with which Spark writes everything that it is given."""
_BASENAME = "mapreduce.output.basename"
"""Hadoop's setting for how the names of written files begin."""
_NAMED = re.compile("/part-[0-9a-f]{32}-")
_BUILT_IN = ("avro", "binaryfile", "csv", "json", "jdbc", "orc", "parquet", "text", "xml")
_JARS = ("spark.jars", "spark.driver.extraClassPath", "spark.remote")
"""Settings that may add formats."""


def has_files(name: str) -> bool:
    """Return whether a format's sources and targets are plain files.

    >>> has_files("Parquet"), has_files("jdbc")
    (True, False)
    """
    return name.lower() in _BUILT_IN and name.lower() != "jdbc"


def writer_options(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a format's writer, so that an import reads back what is written. Given options take precedence.

    >>> writer_options("CSV", {"ESCAPE": "x"})
    {'ignoreLeadingWhiteSpace': 'false', 'ignoreTrailingWhiteSpace': 'false', 'ESCAPE': 'x'}
    """
    known = {option.lower() for option in given}
    own = _WRITTEN.get(name.lower(), {})
    return {option: value for option, value in own.items() if option.lower() not in known} | dict(given)


def check_format(name: str, settings: Mapping[str, str], packages: Collection[str]) -> None:
    """Refuse a misspelt format, unless a library may provide it."""
    is_known = name.lower() in _BUILT_IN or packages or any(key.startswith(_JARS) for key in settings)
    near = difflib.get_close_matches(name.lower(), _BUILT_IN, 1)
    if near and not is_known:
        message = f"There is no format {name!r}"
        raise ConfigError(
            message, hint=f"Did you mean {near[0]!r}? Other formats need a library: --package group:name:version."
        )


def escaped(path: str) -> str:
    r"""Escape a path for Spark, so that it is not read as a pattern.

    >>> print(escaped("in/a b[1].json"))
    in/a b\[1\].json
    """
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def listing(spark: Any, path: str, options: Mapping[str, str]) -> Any:
    """Return a frame with the files below a path (`inputFiles`) and the columns of its directories; no file is read."""
    # `binaryFile` has a fixed schema, so Spark opens no file to infer one.
    return spark.read.format("binaryFile").options(**options).load(path)


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The files of a directory after a writer has ended there.

    Args:
        own: The names begin as that writer's do; empty where Spark does not let files be named.
        others: Those of other writers.
    """

    own: Sequence[str]
    others: Sequence[str]

    @property
    def partitions(self) -> set[int]:
        """Return the partitions of the frame that have files."""
        return {int(file.rsplit("/", 1)[1].split("-")[2]) for file in self.own}


def named(attempt: str) -> str:
    """Return how the names of an attempt's files begin."""
    return f"part-{attempt}"


def saved(writer: Any, spark: Any, directory: str, attempt: str) -> SavedFiles:
    """Save a frame to a directory, with files whose names have the id of an attempt, 32 hexadecimal digits.

    If two writers write to one directory at the same time, Spark completes their files together. The first to end deletes what
    the other one has not completed.
    """
    name = named(attempt)
    writer.option(_BASENAME, name).save(directory)
    files = listing(spark, escaped(directory), {"recursiveFileLookup": "true"}).inputFiles()
    own = [file for file in files if f"/{name}-" in file]
    # Spark of some vendors names files by itself: there, all files are this writer's as far as can be told.
    others = [file for file in files if file not in own and (own or _NAMED.search(file))]
    return SavedFiles(own, others)


def remove(spark: Any, files: Sequence[str]) -> None:
    """Delete files, as `inputFiles` names them; not possible over Spark Connect."""
    java, settings = spark._sc._jvm, spark._sc._jsc.hadoopConfiguration()  # noqa: SLF001 - pyspark has no other way to it
    for file in files:
        path = java.org.apache.hadoop.fs.Path(java.java.net.URI(file))
        path.getFileSystem(settings).delete(path, False)  # noqa: FBT003 - Java has no names of arguments
