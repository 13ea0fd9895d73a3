"""A MariaDB of a test's own, from Debian's package; skipped where there is none."""

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
_PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb-admin")


def binary(name: str) -> str:
    """The path of a program of MariaDB; empty if it is not installed."""
    # Debian has servers where only root looks.
    found = [shutil.which(name), *(f"{place}/{name}" for place in ("/usr/sbin", "/usr/bin"))]
    return next((path for path in found if path is not None and Path(path).exists()), "")


@contextmanager
def running_mariadb(port: int, user: str) -> Iterator[None]:
    """A server on this machine with an empty database `test`, and a user that needs no password."""
    if not all(map(binary, _PROGRAMS)):
        pytest.skip("there is no MariaDB here (Debian: mariadb-server)")
    pytest.importorskip("pymysql")
    owner = "mysql" if os.geteuid() == 0 else None  # it refuses to run as root
    directory = Path(tempfile.mkdtemp(prefix="riverrun-mariadb-"))
    access = directory / "access.sql"
    # The server reads a statement a line.
    access.write_text(
        f"CREATE DATABASE test CHARACTER SET utf8mb4;\nCREATE USER {user}@'127.0.0.1';\n"
        f"GRANT ALL ON *.* TO {user}@'127.0.0.1' WITH GRANT OPTION;\n"
    )
    if owner is not None:
        for path in (directory, access):
            os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
    place = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}"]
    make = [binary("mariadb-install-db"), *place, "--skip-test-db", "--skip-name-resolve"]
    subprocess.run(make, user=owner, cwd=directory, check=True, capture_output=True)
    command = [binary("mariadbd"), *place, f"--port={port}", f"--socket={directory}/socket", f"--init-file={access}"]
    quick = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen([*command, *quick], user=owner, cwd=directory, stdout=log, stderr=log)
    ready = [binary("mariadb-admin"), "--no-defaults", "-h127.0.0.1", f"-P{port}", f"-u{user}", "status"]
    try:
        deadline = time.monotonic() + _SECONDS
        while subprocess.run(ready, check=False, capture_output=True).returncode:
            is_awaited = server.poll() is None and time.monotonic() < deadline
            assert is_awaited, (directory / "log").read_text()
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait(_SECONDS)
        shutil.rmtree(directory)
