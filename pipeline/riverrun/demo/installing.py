"""Installs the demo's packages while its first act is shown."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.demo.steps import following
from riverrun.errors import ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from riverrun.demo.steps import Steps

_LOG_LINES = 30
_MEGABYTE = 1_000_000
_WRITTEN_MEGABYTES = 3_100
"""Size of all that uv writes to its cache for the demo's packages: archives, and pyspark as source, build and wheel."""
_NEW = (".tmp*", "archive-v*/*", "builds-v*/.tmp*", "sdists-v*/.tmp*", "sdists-v*/*/*/*/*")
"""Places in uv's cache at which an installation adds directories."""


@dataclass(frozen=True)
# uv reports a download only when it is complete, and one package is most of them. So progress is the size of the directories
# that it adds to its cache.
class CacheGrowth:
    """Measures how much an installation has written to uv's cache, since the directories in `known` were there."""

    directory: Path
    known: frozenset[Path]
    _sizes: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def from_now_on(cls) -> CacheGrowth:
        """Return the growth of the cache of this environment's uv."""
        uv = Path(sys.executable).with_name("uv")
        shown = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=False).stdout.strip()
        directory = Path(shown) if shown else Path(os.devnull)
        return cls(directory, frozenset(_places(directory)))

    def bytes(self) -> int:
        """Return the size of all directories that are new, even if they are gone again."""
        for place in _places(self.directory):
            # uv moves unpacked archives there as a whole, so they are measured once.
            is_complete = place in self._sizes and place.parent.name.startswith("archive")
            if place not in self.known and not is_complete:
                self._sizes[place] = _size(place)
        return sum(self._sizes.values())


def _places(cache: Path) -> Iterator[Path]:
    for pattern in _NEW:
        yield from cache.glob(pattern)


def _size(directory: Path) -> int:
    """Return the size of all files below a directory, in bytes."""
    size = 0
    for root, _, files in os.walk(directory):
        for name in files:
            # uv may have moved it meanwhile.
            with suppress(OSError):
                size += Path(root, name).lstat().st_size
    return size


def installed(command: Sequence[str], log: Path, meanwhile: Callable[[], bool], steps: Steps, console: Console) -> bool:
    """Run a command that installs packages by uv, and other work `meanwhile`; return the result of that work."""
    growth = CacheGrowth.from_now_on()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as installing:
        try:
            held = meanwhile()
            growing = following(console, "Installing", _WRITTEN_MEGABYTES, "MB", lambda: growth.bytes() / _MEGABYTE)
            with steps.timed("Installing the other packages"), growing:
                code = installing.wait()
        except BaseException:
            installing.terminate()
            raise
    if code:
        tail = "\n".join(log.read_text().splitlines()[-_LOG_LINES:])
        message = f"{' '.join(command)} ended with exit code {code}\n{tail}"
        raise ProcessingError(message, hint=f"The full output is in {log}. Check the network, then retry.")
    # The import system has listed site-packages before the packages came.
    importlib.invalidate_caches()
    return held
