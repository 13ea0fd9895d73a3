"""Fetches Java libraries by the Ivy that pyspark ships: no other tool is needed.

An archive of the classes that a broker makes Java load: with it, a broker needs half of the time to start.

Java maps an archive without checking all of it, so one is written elsewhere and renamed when it is complete. Java ignores an
archive of another Java, or of other libraries.
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
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.errors import EmbeddedBrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MINIMUM_JAVA = 17
_DOWNLOAD_SECONDS = 900
_STEP = 5
"""Number of libraries between two progress messages."""
_TELLING = re.compile(r"not found|ERROR|[Ee]xception|FAILED|refused|timed out|[Uu]nknown host|[Dd]enied")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A library in a Maven repository, with its dependencies."""

    group: str
    name: str
    version: str


def find_java(java_home: Path | None = None) -> str:
    """Return the path of a Java that is new enough.

    Args:
        java_home: Directory to check before the PATH (`JAVA_HOME`).

    Raises:
        EmbeddedBrokerError: If there is none.
    """
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
) -> Path:
    """Return a directory with the libraries and their dependencies, downloaded once, completely or not at all.

    Args:
        artifacts: The libraries.
        target: The directory. If it has libraries, nothing is downloaded, and no network is needed.
        java: The Java that runs Ivy.
        checksums: Checksums of the files in the format of `sha256sum`, checked once after the download. None trusts the
            server.
        on_step: Called repeatedly with a description of the progress.

    Raises:
        EmbeddedBrokerError: If a download failed, or has wrong content.
    """
    if _has_libraries(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        for artifact in artifacts:
            on_step(f"Downloading {artifact.name} {artifact.version} and its dependencies; this happens once")
            _retrieve(java, artifact, Path(scratch), jars, on_step)
        if checksums is not None:
            _check(jars, checksums)
        try:
            jars.rename(target)
        except OSError:
            if not _has_libraries(target):  # otherwise another process was faster, with equal content
                raise
    return target


def _retrieve(java: str, artifact: Artifact, scratch: Path, jars: Path, on_step: Callable[[str], None]) -> None:
    command = [java, "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-cache", str(scratch / "cache")]
    command += ["-dependency", artifact.group, artifact.name, artifact.version, "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=scratch
    ) as ivy:
        watchdog = threading.Timer(_DOWNLOAD_SECONDS, ivy.kill)
        watchdog.start()
        assert ivy.stdout is not None  # noqa: S101 - it is a pipe
        lines = _followed(ivy.stdout, on_step)
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
    """Refuse libraries that differ from this release's."""
    expected = {name: digest for digest, name in map(str.split, checksums.splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.iterdir()}
    others = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if others:
        message = f"Downloaded libraries differ from those of this release: {', '.join(others)}"
        hint = "The repository or a proxy delivers other files. They were deleted; try another repository."
        raise EmbeddedBrokerError(message, hint=hint)


def _followed(output: Iterable[str], on_step: Callable[[str], None]) -> list[str]:
    """Return Ivy's lines that explain a failure, and report the progress of downloads meanwhile."""
    lines, found, done = [], 0, 0
    for line in output:
        text = line.strip()
        if _TELLING.search(text):
            lines.append(text)
        if text.startswith("found "):
            found += 1
            if found % _STEP == 0:
                on_step(f"{found} libraries found")
        if text.startswith("[SUCCESSFUL ]"):
            done += 1
            if done % _STEP == 0 or done == found:
                on_step(f"{done} of {found} libraries")
    return lines


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
    """Return the path of the archive for a Java and its libraries, whether it exists or not.

    Args:
        java: Path of the program.
        libraries: Directory of the libraries.
    """
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
    """Move an archive that is complete to its place. Failing that, brokers start more slowly."""
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
            copied = shutil.move(unfinished, Path(aside, archive.name))
            Path(copied).replace(archive)
    except OSError:  # another user's directory, or a full disk
        unfinished.unlink(missing_ok=True)
