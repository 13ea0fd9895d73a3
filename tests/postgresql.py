"""A PostgreSQL of a test's own, from Debian's package; skipped where there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
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


@contextmanager
def running_postgres(port: int, user: str, password: str = "") -> Iterator[None]:
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
    data = f"{directory}/data"
    access = ["-A", "scram-sha-256", f"--pwfile={secret}"] if password else ["-A", "trust"]
    make = [binary("initdb"), "-D", data, "-U", user, "--no-sync", *access]
    subprocess.run(make, user=owner, cwd=directory, check=True, capture_output=True)
    start = [binary("postgres"), "-D", data, "-p", str(port), "-k", str(directory), "-h", "127.0.0.1", "-F"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(start, user=owner, cwd=directory, stdout=log, stderr=log)
    ready = [binary("pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + _SECONDS
    while subprocess.run(ready, check=False, stdout=subprocess.DEVNULL).returncode:
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.1)
    yield
    server.terminate()
    server.wait(_SECONDS)
    shutil.rmtree(directory)
