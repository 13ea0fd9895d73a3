"""Fetch the libraries of the embedded broker once, and archive its classes so that Java starts in half of the time.

Ivy, which pyspark ships, fetches the libraries, so no other tool is needed. With the archive, a broker starts in half the time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.errors import EmbeddedBrokerError
from riverrun.intervals import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MINIMUM_JAVA = 17
_CACHE = "cache"
_DOWNLOAD_SECONDS = 900
_LOOK_SECONDS = 2.0
"""Time between two progress messages."""
_MEGABYTE = 1_000_000
_TELLING = re.compile(r"not found|ERROR|[Ee]xception|FAILED|refused|timed out|[Uu]nknown host|[Dd]enied")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A library in a Maven repository, with its dependencies."""

    group: str
    name: str
    version: str


def find_java(java_home: Path | None = None) -> str:
    """Return the path of a Java that is new enough."""
    java = (shutil.which(java_home / "bin" / "java") if java_home is not None else None) or shutil.which("java")
    if java is None:
        message = "Java was not found in JAVA_HOME or on the PATH"
        raise EmbeddedBrokerError(message, hint=f"Install a Java {MINIMUM_JAVA} runtime; Spark needs one as well.")
    try:
        shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        shown = str(error)
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < MINIMUM_JAVA:
        message = f"{java} is too old: {shown.splitlines()[0] if shown else 'its version is unknown'}"
        raise EmbeddedBrokerError(message, hint=f"Install Java {MINIMUM_JAVA} or newer.")
    return str(java)


def resolve(
    artifacts: Sequence[Artifact],
    target: Path,
    java: str,
    checksums: str | None = None,
    on_step: Callable[[str], None] = lambda _step: None,
    *,
    megabytes: int | None = None,
) -> Path:
    """Return a directory with the libraries and their dependencies, downloaded once, completely or not at all.

    If `target` has libraries, no network is needed. `checksums` have the format of `sha256sum`; None trusts the server.
    `on_step` is called by another thread as well.
    """
    if _has_libraries(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        with _measured(Path(scratch), megabytes, on_step):
            for artifact in artifacts:
                on_step(f"Downloading {artifact.name} {artifact.version} and its dependencies; this happens once")
                _retrieve(java, artifact, Path(scratch), jars)
        if checksums is not None:
            _check(jars, checksums)
        try:
            jars.rename(target)
        except OSError:
            # If there are libraries, another process was faster, with equal content.
            if not _has_libraries(target):
                raise
    return target


@contextmanager
def _measured(scratch: Path, megabytes: int | None, on_step: Callable[[str], None]) -> Iterator[None]:
    """Report size, rate and remaining time of a download while the block runs."""
    begun = time.monotonic()

    def look() -> None:
        done = _size(scratch / _CACHE) / _MEGABYTE
        if done >= 1:
            on_step(progress(done, megabytes, time.monotonic() - begun))

    with repeating(look, _LOOK_SECONDS, "download"):
        yield


def progress(done: float, total: int | None, seconds: float) -> str:
    """Return size, rate and remaining time of a download.

    >>> progress(15.2, 45, 10)
    '15 of 45 MB, 1.5 MB/s, 20 s left'
    >>> progress(15.2, None, 10)
    '15 MB, 1.5 MB/s'
    """
    rate = done / seconds
    if total is None or done > total:
        return f"{done:.0f} MB, {rate:.1f} MB/s"
    return f"{done:.0f} of {total} MB, {rate:.1f} MB/s, {(total - done) / rate:.0f} s left"


def _size(directory: Path) -> int:
    """Return the size of the libraries that are in Ivy's cache so far."""
    size = 0
    for path in directory.rglob("*.jar*"):
        # Ivy renames a file when it is complete.
        with suppress(OSError):
            size += path.stat().st_size
    return size


def _retrieve(java: str, artifact: Artifact, scratch: Path, jars: Path) -> None:
    command = [java, "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-cache", str(scratch / _CACHE)]
    command += ["-dependency", artifact.group, artifact.name, artifact.version, "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=scratch
    ) as ivy:
        watchdog = threading.Timer(_DOWNLOAD_SECONDS, ivy.kill)
        watchdog.start()
        assert ivy.stdout is not None  # noqa: S101 - it is a pipe
        lines = [line.strip() for line in ivy.stdout if _TELLING.search(line)]
        watchdog.cancel()
    if ivy.returncode == -signal.SIGKILL:
        message = f"Download of {artifact.name} {artifact.version} took more than {_DOWNLOAD_SECONDS} s"
        raise EmbeddedBrokerError(message, hint="Check the network, then retry.")
    if ivy.returncode or not jars.is_dir():
        message = f"Download of {artifact.name} {artifact.version} failed: {' / '.join(lines[-3:])}"
        raise EmbeddedBrokerError(
            message, hint="The first start needs a Maven repository; later starts work without a network."
        )


def _check(jars: Path, checksums: str) -> None:
    expected = {name: digest for digest, name in map(str.split, checksums.splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.iterdir()}
    others = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if others:
        message = f"Downloaded libraries differ from those of this release: {', '.join(others)}"
        hint = "The repository or a proxy delivers other files. They were deleted; try another repository."
        raise EmbeddedBrokerError(message, hint=hint)


def _has_libraries(directory: Path) -> bool:
    return next(directory.glob("*.jar"), None) is not None


def _ivy_jar() -> Path:
    """Return the path of Ivy in pyspark, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    roots = spec.submodule_search_locations if spec is not None else None
    jars = sorted(Path(next(iter(roots))).glob("jars/ivy-*.jar")) if roots else []
    if not jars:
        message = "pyspark is not installed; its Ivy library downloads Kafka"
        raise EmbeddedBrokerError(message)
    return jars[0]


_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def classes_archive(java: str, libraries: Path) -> Path:
    """Return the path of the archive for a Java and its libraries, whether it exists or not."""
    # Java ignores an archive of another Java, so each one that is installed has its own.
    place = Path(shutil.which(java) or java).resolve()
    identity = f"{place} {place.stat().st_mtime_ns}"
    return libraries / f"classes-{sha256(identity.encode()).hexdigest()[:16]}.jsa"


def using(archive: Path) -> tuple[str, ...]:
    """Return Java's options that use an archive; none if it does not exist."""
    return (f"-XX:SharedArchiveFile={archive}", *_SILENT) if archive.exists() else ()


def recording(unfinished: Path) -> tuple[str, ...]:
    """Return Java's options that write an archive when the process ends, or is asked to end."""
    return (f"-XX:ArchiveClassesAtExit={unfinished}", *_SILENT)


def publish(unfinished: Path, archive: Path) -> None:
    """Move an archive that is complete to its place."""
    # Java maps an archive without checking all of it, so it is moved to the same file system first, and then renamed.
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
            copied = shutil.move(unfinished, Path(aside, archive.name))
            Path(copied).replace(archive)
    # Another user's directory, or a full disk: brokers start more slowly, but they start.
    except OSError:
        unfinished.unlink(missing_ok=True)
