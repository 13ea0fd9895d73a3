"""Work for a Spark Connect server: runs, dry runs, workers, imports and exports, with the application's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import UnsupportedByHostError
from riverrun.transfers.exports import ExportSpec, run_export
from riverrun.transfers.imports import ImportSpec, run_import
from tests.presence import present
from tests.spark_sessions import session_of
from tests.system.groups import PARTITIONS
from tests.system.spark_clusters import QUICK, SPARK_HOME, search_path
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.brokers import Broker
    from tests.system.groups import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[str]:
    """The address of a server with two cores, whose executor finds Riverrun, but no application."""
    directory, port = tmp_path_factory.mktemp("connect"), new_port()
    settings = {
        "spark.master": "local[2,4]",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(QUICK),
        "spark.ui.enabled": "false",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": search_path(),
        "spark.jars.packages": "com.h2database:h2:2.3.232",
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
    server.wait(DEADLINE_S)


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
    past, at = group.directory / "past", ",".join(f"{group.name}.in-{n}@5" for n in range(PARTITIONS))
    exported = group.command("export", group.name, str(past), "--store", "counts", "--at", at, "--format", "json")
    assert exported.returncode == 0, exported.stderr
    rows = [json.loads(line) for file in past.glob("*.json") for line in file.read_text().splitlines()]
    assert sum(row["value"] for row in rows) == 5 * PARTITIONS
    driver = group.start("--on", "spark", "--instances", "2", settings=settings)
    group.write(5_000)
    group.until_done()
    assert group.stop(driver) == 0
    assert " records processed in " in group.log(0).splitlines()[-1]
    group.check()


@pytest.fixture
def spark(server: str) -> Iterator[SparkSession]:
    with session_of(server) as session:
        yield session


def test_imports_and_exports_of_files_and_tables_go_through_a_spark_connect_server(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    orders, copies = f"{unique}.orders", f"{unique}.copies"
    broker.create(2, orders, copies)
    rows = [{"id": n, "user": f"u{n % 3}"} for n in range(20)]
    (tmp_path / "in.json").write_text("\n".join(map(json.dumps, rows)))
    files = ImportSpec(orders, f"{tmp_path}/in.json", "json", key=("user",))
    assert run_import(files, broker.admin(), spark).written == 20
    assert run_import(files, broker.admin(), spark).written == 0

    options = {"url": f"jdbc:h2:file:{tmp_path}/db;DB_CLOSE_DELAY=-1"}
    table = ExportSpec(orders, "ORDERS", "jdbc", options=options, schema="id long, user string")
    summary = run_export(table, broker.admin(), spark)
    assert (summary.read, summary.written) == (20, 20)
    broker.write(orders, [(b"u0", b'{"id": 20, "user": "u0"}', 1)])
    assert run_export(table, broker.admin(), spark).written == 1
    back = ImportSpec(copies, "ORDERS", "jdbc", options=options, key=("_key",), incremental="id")
    assert run_import(back, broker.admin(), spark).written == 21
    assert sorted(json.loads(present(r.value))["id"] for r in broker.read(copies)) == list(range(21))
    elsewhere = replace(table, options={"url": "jdbc:derby:x"}, name=f"{unique}.elsewhere")
    with pytest.raises(UnsupportedByHostError, match="Spark Connect can write tables in PostgreSQL and H2 only"):
        run_export(elsewhere, broker.admin(), spark)

    assert run_export(ExportSpec(copies, f"{tmp_path}/out", "json"), broker.admin(), spark).written == 21
    written = [json.loads(line) for file in tmp_path.rglob("out/*/*.json") for line in file.read_text().splitlines()]
    assert sorted(json.loads(row["value"])["id"] for row in written) == list(range(21))
