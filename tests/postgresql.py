"""A PostgreSQL of a test's own, from Debian's package; skipped where there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 120


def binary(name: str) -> str:
    """The path of a program of PostgreSQL; empty if it is not installed."""
    found = [shutil.which(name), *sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))]
    return next((path for path in found if path is not None), "")


@dataclass
class PostgresServer:
    """A server that can be restarted."""

    port: int
    directory: Path
    owner: str | None
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [binary("postgres"), "-D", f"{self.directory}/data", "-p", str(self.port), "-k", str(self.directory)]
        with (self.directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "-h", "127.0.0.1", "-F"],
                user=self.owner,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                text=True,
            )
        ready = [binary("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + _SECONDS
        while subprocess.run(ready, check=False, stdout=subprocess.DEVNULL).returncode:
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once, with all connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(_SECONDS)


@contextmanager
def running_postgres(port: int, user: str, password: str = "") -> Iterator[PostgresServer]:
    """A server on this machine with an empty database `postgres`; without a password it trusts everybody."""
    if not binary("postgres"):
        pytest.skip("there is no PostgreSQL here (Debian: postgresql)")
    owner = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    directory = Path(tempfile.mkdtemp(prefix="riverrun-postgres-"))
    secret = directory / "password"
    secret.write_text(password)
    if owner is not None:
        for path in (directory, secret):
            os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
    access = ["-A", "scram-sha-256", f"--pwfile={secret}"] if password else ["-A", "trust"]
    make = [binary("initdb"), "-D", f"{directory}/data", "-U", user, "--no-sync", *access]
    subprocess.run(make, user=owner, cwd=directory, check=True, capture_output=True)
    server = PostgresServer(port, directory, owner)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory)
