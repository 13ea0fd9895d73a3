"""Passes on Java's standard error output, without the lines that Spark prints at each start.

An archive of the classes that Spark makes Java load: it halves the start time of a session on this machine.

Java maps an archive without checking all of it, so it is written elsewhere and renamed when complete. Java ignores one made
by another Java, or with other libraries; its name says which ones it is for.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEFAULT_HOME = Path("~/.cache/riverrun")
"""Directory of downloads and of files that are made once, unless `--home` or `RIVERRUN_HOME` names another one."""
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_JAVA_SECONDS = 120


def classes_archive(environ: Mapping[str, str], home: Path | None = None) -> Path:
    """Return the path of the archive for this machine's Java and this Spark, whether it exists or not.

    Args:
        environ: The environment, which locates both.
        home: Directory of files that are made once; as the environment says if left out.
    """
    import pyspark

    java_home = environ.get("JAVA_HOME")
    java = shutil.which(str(Path(java_home, "bin", "java")) if java_home else "java")
    place = Path(java).resolve() if java else Path()
    made_ns = place.stat().st_mtime_ns if java else 0
    identity = f"{place} {made_ns} {environ.get('SPARK_HOME', pyspark.__path__[0])} {pyspark.__version__}"
    where = home or Path(environ.get("RIVERRUN_HOME", DEFAULT_HOME))
    return where.expanduser() / "spark-classes" / f"{sha256(identity.encode()).hexdigest()[:16]}.jsa"


def archive_options(archive: Path | None) -> str:
    """Return Java's options that use an archive; none if it does not exist."""
    if archive is None or not archive.exists() or " " in str(archive):  # Spark splits options at spaces
        return ""
    return f"-XX:SharedArchiveFile={archive} {_SILENT}"


def archive_classes(started: Callable[[str], Any], archive: Path) -> None:
    """Make the archive: run typical work in a session, and let its Java record the classes that it loads.

    Args:
        started: Starts a session of this process with further options of Java. There must be none yet.
        archive: Path of the archive.

    Raises:
        EngineError: If Java does not write it.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
        unfinished = Path(aside, archive.name)
        session = started(f"-XX:ArchiveClassesAtExit={unfinished} {_SILENT}")
        _work(session, Path(aside, "table"))
        _end(session)
        if not unfinished.exists():
            message = f"Java wrote no archive of its classes to {archive.parent}"
            raise EngineError(message, hint="Java needs an archive of its own classes first: java -Xshare:dump")
        unfinished.replace(archive)


def _work(session: Any, table: Path) -> None:
    """Do typical work of bounded runs, exports and reads of state."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    rows = session.range(2).mapInArrow(same, "id long")
    rows.collect()
    rows.write.parquet(str(table))
    session.read.parquet(str(table)).groupBy("id").count().collect()


def _end(session: Any) -> None:
    """End a session and its Java, which writes the archive when it ends."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends with its standard input, and only then writes the archive
    gateway.proc.wait(_JAVA_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - as above


_STDERR = 2
_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level"
    rb"|To adjust logging level use|WARN NativeCodeLoader|Setting Spark log level to"
    rb"|WARN Utils: Your hostname|WARN Utils: Set SPARK_LOCAL_IP"
    # What Ivy prints about packages that it finds, and where it has looked for the others:
    rb"|^:: (loading settings|resolving|resolution|retrieving|problems|USE VERBOSE)|^:::: WARNINGS|^Ivy Default Cache"
    rb"|^The jars for the packages|^[^ ]+#[^ ]+ added as a dependency|^\tconfs: |^\tfound |^\t:: modules in use|^\t[-|]"
    rb"|^\t[^ ]+#[^ ]+ from |^\t\d+ artifacts copied|^\t==== |^\t  -- artifact|^\t  [a-z/]+[:/]|^\t\t::::|UNRESOLVED"
    rb"|^\s*$"
)
"""Lines that need no action: Spark prints them before it reads its settings, or in spite of these."""
_ENDED, _FRAME = b'Exception in thread "main" ', b"\tat "
"""The line that says why Spark has not started, and those below it, in the text of its own code."""


@contextmanager
def quiet_java() -> Iterator[None]:
    """Start Java in the body; its output is passed on without the lines of each start.

    Java inherits this process's standard error output and keeps it. So Java gets a pipe instead, and a thread passes its
    lines on for as long as both processes live.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads may be starting processes just now
        yield
        return
    sys.stderr.flush()
    before, (ours, javas) = os.dup(_STDERR), os.pipe()
    threading.Thread(target=_pass_on, args=(ours, before), name="java-output", daemon=True).start()
    os.dup2(javas, _STDERR)
    os.close(javas)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)


def _pass_on(source: int, target: int) -> None:
    """Copy whole lines until the last writer has ended."""
    rest, is_shown = b"", _Filter()
    while chunk := os.read(source, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        _show(target, [line + b"\n" for line in lines if is_shown(line)])
    _show(target, [rest] if rest and is_shown(rest) else [])


class _Filter:
    """Decides which lines are shown, one after the other."""

    def __init__(self) -> None:
        self._has_ended = False

    def __call__(self, line: bytes) -> bool:
        self._has_ended = self._has_ended or line.startswith(_ENDED)
        return not (_NOISE.search(line) or (self._has_ended and line.startswith(_FRAME)))


def _show(target: int, lines: list[bytes]) -> None:
    shown = b"".join(lines)
    try:
        while shown:
            shown = shown[os.write(target, shown) :]
    except OSError:  # the reader is gone: Java must not wait for it
        return
