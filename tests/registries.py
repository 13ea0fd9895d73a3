"""A schema registry of the tests' own: Apicurio's, which speaks Confluent's protocol, with its database in memory."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import EmbeddedBrokerError
from riverrun.kafka.embedded.artifacts import find_java
from tests.brokers import JAVA_HOME
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "2.6.13.Final"
_NAME = f"apicurio-registry-app-{VERSION}"
_URL = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/{_NAME}-all.tar.gz"
_INSTALLED = Path(__file__).parents[1] / ".riverrun" / _NAME
_SECONDS = 120


@contextmanager
def running_registry() -> Iterator[str]:
    """The address of a registry that is empty; skipped where there is no Java, or it cannot be downloaded."""
    try:
        java = find_java(JAVA_HOME)
        home = _installed()
    except (EmbeddedBrokerError, OSError) as error:
        pytest.skip(f"there is no schema registry here: {error}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
    command += [f"-Dquarkus.http.port={port}", "-jar", f"{_NAME}-runner.jar"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait(url, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _installed() -> Path:
    """Its path; it is downloaded once, completely or not at all."""
    if not _INSTALLED.is_dir():
        _INSTALLED.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_INSTALLED.parent) as scratch:
            archive, home = Path(scratch) / "registry.tar.gz", Path(scratch) / "home"
            with urllib.request.urlopen(f"{_URL}.sha1", timeout=60) as response:  # noqa: S310 - Maven Central
                expected = response.read().decode().split()[0]
            with urllib.request.urlopen(_URL, timeout=60) as response, archive.open("wb") as file:
                shutil.copyfileobj(response, file)
            assert hashlib.sha1(archive.read_bytes(), usedforsecurity=False).hexdigest() == expected
            with tarfile.open(archive) as packed:
                packed.extractall(home, filter="data")
            if not _INSTALLED.is_dir():
                home.rename(_INSTALLED)
    return _INSTALLED


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None, "the registry has ended"
        try:
            urllib.request.urlopen(f"{url}/subjects", timeout=60).close()  # noqa: S310 - on this machine
        except (urllib.error.URLError, OSError):
            return False
        return True

    until(answers, "came up")
