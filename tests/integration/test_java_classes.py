"""An archive of Spark's classes: made once by a command, used by every session after it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.cli.project import Settings
from riverrun.spark.java import archive_options, classes_archive
from tests.waiting import until

if TYPE_CHECKING:
    from riverrun.project.cluster import SparkSessions
    from tests.brokers import Broker

pytestmark = pytest.mark.spark

SESSION = """
import os, sys
from pathlib import Path
from riverrun.spark.java import classes_archive
from riverrun.spark.session import spark_session

only_with_it = {"spark.driver.extraJavaOptions": "-Xshare:on"}  # or Java does not start
session = spark_session("local[1]", only_with_it, archive=classes_archive(os.environ, Path(sys.argv[1])))
management = session._jvm.java.lang.management.ManagementFactory
print([str(given) for given in management.getRuntimeMXBean().getInputArguments()])
"""


APP = """
from riverrun import STRING, Consumed, Produced

def build(builder):
    builder.stream("{name}", Consumed(STRING, STRING)).to("{name}.out", Produced(STRING, STRING))
    return builder.build()
"""


@pytest.mark.broker
def test_the_first_use_of_spark_has_an_archive_made_that_later_sessions_use(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(1, unique, f"{unique}.out")
    broker.write(unique, [(b"k", b"v", 1)])
    (tmp_path / "copied.py").write_text(APP.format(name=unique))
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n[apps.{unique}]\ntopology = "copied:build"\n'
    )
    archive = classes_archive(os.environ, tmp_path)
    assert archive_options(archive) == "", "Java ends if it is told of one that is not there"
    left = archive.parent / "unfinished" / "left by a process that was killed"
    left.mkdir(parents=True)
    riverrun = [sys.executable, "-m", "riverrun.cli", "--home", str(tmp_path)]
    environ = {**os.environ, "RIVERRUN_PREPARE_SPARK": "1"}
    run = [*riverrun, "run", unique, "--engine", "spark"]
    done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert "engine: spark (as chosen)" in done.stdout
    prepare = "\0".join([*riverrun, "prepare-spark"]).encode()
    with subprocess.Popen([*riverrun, "prepare-spark"], stdout=subprocess.PIPE, text=True) as at_once:
        until(lambda: commands().count(prepare) == 2, "began to make the archive in the background as well")
        said, _ = at_once.communicate()
    assert said.startswith(("The archive already exists", "The archive was written"))
    used = subprocess.run([sys.executable, "-c", SESSION, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"-XX:SharedArchiveFile={archive}" in used.stdout
    until(lambda: prepare not in commands(), "ended in the background")
    assert list(archive.parent.iterdir()) == [archive], "what was made aside is gone"


def commands() -> list[bytes]:
    """The command lines of all processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((process / "cmdline").read_bytes().rstrip(b"\0"))
    return found


def test_no_archive_is_made_where_it_is_switched_off_or_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text('[kafka]\n"bootstrap.servers" = "localhost:1"\n')

    def sessions(*, prepares: bool, master: str | None = None) -> SparkSessions:
        settings = Settings(tmp_path / "streams.toml", tmp_path, os.environ, prepares)
        return settings.project(master).spark_sessions

    assert sessions(prepares=True).lacks_archive
    assert not sessions(prepares=True, master="spark://host:7077").lacks_archive
    assert isinstance(sessions(prepares=True).on_start, partial)
    assert not isinstance(sessions(prepares=False).on_start, partial)
