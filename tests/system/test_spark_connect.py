"""What goes to a Spark Connect server: runs, dry runs, workers, imports and exports, with an application that is sent along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.spark_clusters import SMALL_HEAP, SPARK_HOME, search_path, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.groups import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
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
    server.wait(60)


def told(group: Group, *arguments: str) -> str:
    """What a command that succeeds says."""
    done = group.command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_imports_and_exports_of_files_tables_and_stores_go_through_a_spark_connect_server(
    group: Group, server: str, broker: Any, unique: str
) -> None:
    files = f"{group.directory}/{group.name}_app.py"
    group.configure(settings=f'[spark]\n"spark.remote" = "{server}"\n"spark.submit.pyFiles" = "{files}"')
    orders, copies = f"{unique}.orders", f"{unique}.copies"
    broker.create(2, orders, copies)
    rows = [{"id": n, "user": f"u{n % 3}"} for n in range(20)]
    (group.directory / "in.json").write_text("\n".join(map(json.dumps, rows)))
    imported = told(group, "import", f"{group.directory}/in.json", orders, "--format", "json", "--key", "user")
    assert imported == f"20 rows read, 20 records written to {orders} in 1 batches\n"

    table = ["--format", "jdbc", "--option", f"url=jdbc:h2:file:{group.directory}/db;DB_CLOSE_DELAY=-1"]
    export = ["export", orders, "ORDERS", *table, "--schema", "id long, user string"]
    assert "20 records read, 20 rows written to ORDERS" in told(group, *export)
    broker.write(orders, [(b"u0", b'{"id": 20, "user": "u0"}', 1)])
    assert "1 records read, 1 rows written to ORDERS" in told(group, *export)
    told(group, "import", "ORDERS", copies, *table, "--key", "_key", "--incremental", "id")
    assert sorted(json.loads(r.value)["id"] for r in broker.read(copies)) == list(range(21))
    refused = group.command(
        "export", orders, "ORDERS", "--format", "jdbc", "--option", "url=jdbc:derby:x", "--name", "x"
    )
    assert "Over Spark Connect tables are written in PostgreSQL and H2 only" in refused.stderr

    target = group.directory / "out"
    assert "21 records read, 21 rows written" in told(group, "export", copies, str(target), "--format", "json")
    written = [json.loads(line) for file in target.rglob("*.json") for line in file.read_text().splitlines()]
    assert sorted(json.loads(row["value"])["id"] for row in written) == list(range(21))
