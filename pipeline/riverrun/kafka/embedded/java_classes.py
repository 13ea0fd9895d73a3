"""An archive of the classes that a broker makes Java load: with it, a broker needs half of the time to start.

Java maps an archive without checking all of it, so one is written elsewhere and renamed when it is complete. Java ignores an
archive of another Java, or of other libraries.
"""

from __future__ import annotations

import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

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
    """Return Java's options that write an archive when the process ends by itself, or is asked to end."""
    return (f"-XX:ArchiveClassesAtExit={unfinished}", *_SILENT)


def publish(unfinished: Path, archive: Path) -> None:
    """Move an archive that is complete to its place. Failing that, brokers start more slowly."""
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
            copied = shutil.move(unfinished, Path(aside, archive.name))
            Path(copied).replace(archive)
    except OSError:  # another user's directory, or a full disk
        unfinished.unlink(missing_ok=True)
