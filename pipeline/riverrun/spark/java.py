"""Runs the Java process of Spark sessions: its start, at once or ahead of a session, its output and its end.

Java starts in half the time with an archive of the classes that Spark makes it load. It ignores an archive made by another
Java, or with other libraries; the archive's name says which ones it is for.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import EngineError
from riverrun.locks import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

# Directory of downloads and of files that are made once, unless `--home` or `RIVERRUN_HOME` names another one.
DEFAULT_HOME = Path("~/.cache/riverrun")
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_JAVA_SECONDS = 120
# How long the end of a body waits for a Java that is starting. A longer start loads packages; it ends with this process.
_AHEAD_SECONDS = 5.0
_UNFINISHED = "unfinished"


def classes_archive(environ: Mapping[str, str], home: Path | None = None) -> Path:
    """Return the path of the archive for the Java and the Spark of an environment, whether it exists or not."""
    import pyspark

    java_home = environ.get("JAVA_HOME")
    java = shutil.which(str(Path(java_home, "bin", "java")) if java_home else "java")
    place = Path(java).resolve() if java else Path()
    made_ns = place.stat().st_mtime_ns if java else 0
    identity = f"{place} {made_ns} {environ.get('SPARK_HOME', pyspark.__path__[0])} {pyspark.__version__}"
    where = home or Path(environ.get("RIVERRUN_HOME") or DEFAULT_HOME)
    return where.expanduser() / "spark-classes" / f"{sha256(identity.encode()).hexdigest()[:16]}.jsa"


def archive_options(archive: Path | None) -> str:
    """Return Java's options that use an archive; none if it does not exist."""
    # Spark splits options at spaces, so a path with one cannot be passed.
    if archive is None or not archive.exists() or " " in str(archive):
        return ""
    return f"-XX:SharedArchiveFile={archive} {_SILENT}"


def archive_classes(started: Callable[[str], Any], archive: Path) -> bool:
    """Make the archive unless it exists: run typical work in a session, and let its Java record the classes that it loads.

    Waits while another process makes one in this directory. Removes what a process left that was killed while making one.
    `started` starts a session with further options of Java; there must be none yet. Returns whether this call has made it.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    aside = archive.parent / _UNFINISHED
    with _alone_in(archive.parent):
        if archive.exists():
            return False
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            # Java maps an archive without checking all of it, so it is written elsewhere and renamed when complete.
            unfinished = aside / archive.name
            session = started(f"-XX:ArchiveClassesAtExit={unfinished} {_SILENT}")
            _work(session, aside / "table")
            session.stop()
            end_java(_JAVA_SECONDS)
            if not unfinished.exists():
                message = f"Java wrote no archive of its classes to {archive.parent}"
                raise EngineError(message, hint="Java needs an archive of its own classes first: java -Xshare:dump")
            unfinished.replace(archive)
        finally:
            # An interrupted one would still write the archive, for minutes at a low priority.
            kill_java()
            shutil.rmtree(aside, ignore_errors=True)
    return True


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    # The system unlocks the directory when this process ends, however it ends.
    opened = os.open(directory, os.O_RDONLY)
    try:
        flock(opened, LOCK_EX)
        yield
    finally:
        os.close(opened)


def _work(session: Any, table: Path) -> None:
    """Do typical work of bounded runs, exports and reads of state."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    rows = session.range(2).mapInArrow(same, "id long")
    rows.collect()
    rows.write.parquet(str(table))
    session.read.parquet(str(table)).groupBy("id").count().collect()


_LAUNCHING = ProcessLock()


def launch_java(settings: Mapping[str, str], output: Callable[[], AbstractContextManager[int | None]]) -> None:
    """Start the Java of this process's sessions, unless it runs."""
    # Spark's first call to Java imports its test tools, and pandas with them, to look for numpy. That takes a second, which
    # another thread spends while Java starts.
    threading.Thread(target=import_module, args=("pyspark.testing.utils",), name="load-pyspark", daemon=True).start()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    # All users of this machine can read these settings, as they become Java's arguments. Settings made later reach Java
    # through the bridge, so secrets are not among these.
    for key, value in settings.items():
        conf.set(key, value)
    with _LAUNCHING.held():
        if SparkContext._gateway is None:  # noqa: SLF001 - here and below: its constructor starts Java with all settings
            with output() as stderr:
                gateway = launch_gateway(conf, None if stderr is None else {"stderr": stderr})
            SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def end_java(within_s: float | None = None) -> None:
    """End the Java of this process, which has no session any more; wait for it if `within_s` is given."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    gateway.shutdown()
    # Java ends with its standard input, and only then writes an archive of its classes.
    gateway.proc.stdin.close()
    if within_s is not None:
        gateway.proc.wait(within_s)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - as above


def kill_java() -> None:
    gateway = getattr(_context(), "_gateway", None)
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        gateway.proc.kill()


def _context() -> Any:
    """Return pyspark's `SparkContext`; None if pyspark is not loaded, which this does not do."""
    pyspark = sys.modules.get("pyspark")
    return getattr(pyspark, "SparkContext", None)


class JavaAhead:
    """Starts Java in the background (`launch_java`), for a session that is probably needed soon."""

    def __init__(self, launch: Callable[[], None]) -> None:
        self._launch = launch
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="java-ahead", daemon=True)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Start Java while the body runs. Without a session at its end, Java is ended.

        Errors of the start are raised by the session that needs it (`wait`).
        """
        if _context() is not None and _context()._gateway is not None:  # noqa: SLF001 - here and below: nothing else tells
            yield
            return
        self._thread.start()
        try:
            yield
        finally:
            self._thread.join(_AHEAD_SECONDS)
            if not self._thread.is_alive() and _context()._gateway and not _context()._active_spark_context:  # noqa: SLF001
                end_java()

    def wait(self) -> None:
        """Wait until Java has started, if it is starting; raise the error of its start."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._launch()
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error


_STDERR = 2
# Lines that need no action. Spark prints them before it reads its settings, or in spite of these.
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
# The line that says why Spark has not started, and the stack trace below it.
_ENDED, _FRAME = b'Exception in thread "main" ', b"\tat "


@contextmanager
def quiet_java() -> Iterator[int]:
    """Return a file descriptor for the standard error output of a Java that the body starts.

    A thread passes its lines on to this process's, without those of each start, while both processes live.
    """
    ours, javas = os.pipe()
    threading.Thread(target=_pass_on, args=(ours, _STDERR), name="java-output", daemon=True).start()
    try:
        yield javas
    finally:
        # Java has its own copy: `_pass_on` reads the end of the pipe only when the last copy is closed.
        os.close(javas)


def _pass_on(source: int, target: int) -> None:
    rest, is_shown = b"", _Filter()
    while chunk := os.read(source, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        _show(target, [line + b"\n" for line in lines if is_shown(line)])
    _show(target, [rest] if rest and is_shown(rest) else [])


class _Filter:
    """Decides which lines are shown; frames of a stack trace are hidden after the line that says why Java ended."""

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
    except OSError:
        # This process's reader is gone. Lines are dropped, as Java would wait for a full pipe.
        return
