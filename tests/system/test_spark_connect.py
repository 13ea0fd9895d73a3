"""What goes to a Spark Connect server: runs, dry runs and workers, with an application that is sent along."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.system.spark_clusters import SMALL_HEAP, SPARK_HOME, search_path, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.groups import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[str]:
    """The address of a server with two cores, whose executor finds Millrace, but no application."""
    directory, port = tmp_path_factory.mktemp("connect"), new_port()
    settings = {
        "spark.master": "local[2,4]",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(SMALL_HEAP),
        "spark.ui.enabled": "false",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": search_path(),
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    log = (directory / "server.log").open("w")
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = subprocess.Popen(
        [
            f"{SPARK_HOME}/bin/spark-submit",
            *options,
            "--class",
            main,
            "spark-internal",
        ],
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable},
        cwd=directory,
        stdout=log,
        stderr=log,
    )
    until(lambda: "Spark Connect server started" in (directory / "server.log").read_text(), "started a server")
    yield f"sc://127.0.0.1:{port}"
    server.terminate()
    server.wait(60)


def test_runs_dry_runs_and_workers_go_through_a_spark_connect_server(group: Group, server: str) -> None:
    files = f"{group.directory}/{group.name}_app.py"
    settings = f'[spark]\n"spark.remote" = "{server}"\n"spark.submit.pyFiles" = "{files}"\n"spark.executor.cores" = 1'
    group.configure(settings=settings)
    group.write(1_000)
    dry = group.command("run", group.name, "--dry-run")
    assert f"{group.name}.out: 23 records would be written" in dry.stdout, dry.stderr
    run = group.command("run", group.name, "--max-records-per-slice", "400")
    assert run.returncode == 0, run.stderr
    group.check()
    driver = group.start("--on", "spark", "--instances", "2", settings=settings)
    group.write(5_000)
    group.until_done()
    assert group.stop(driver) == 0
    assert " records processed in " in group.log(0).splitlines()[-1]
    group.check()
