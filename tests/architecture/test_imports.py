"""What static analysis cannot see: which engines really load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pipeline

ENGINES = ("airflow", "confluent_kafka", "great_expectations", "pyspark", "rocksdict")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("pipeline", ()),
        ("pipeline.testing", ()),
        ("pipeline.runtime.task", ()),
        ("pipeline.apps.delays", ()),
        ("pipeline.cli.main", ()),
        ("pipeline.spark.executor", ("confluent_kafka", "rocksdict")),
        ("pipeline.spark.job", ("confluent_kafka", "rocksdict")),
        ("pipeline.spark.imports", ("confluent_kafka", "rocksdict")),
        ("pipeline.spark.exports", ("confluent_kafka", "rocksdict")),
        ("millrace_airflow.transfers", ("airflow",)),
        ("pipeline.worker.worker", ("confluent_kafka", "rocksdict")),
    ],
)
def test_a_module_loads_no_engine_it_does_not_need(module: str, allowed: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {ENGINES!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(shown.split()) <= set(allowed)


def test_the_public_surface_is_what_it_says() -> None:
    public = {name for name in vars(pipeline) if not name.startswith("_") and name[0].isupper()}
    public |= {"dead_letter_queue_record", "session_windowed", "windowed"}
    assert sorted(pipeline.__all__) == sorted(public)
