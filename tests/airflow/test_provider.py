"""The provider's description of itself for Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import validate

from riverrun_airflow.provider import get_provider_info

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.airflow

SCRIPT = """
import json, pkgutil, sys
from importlib import import_module
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger
import riverrun_airflow

def below(kind):
    for each in kind.__subclasses__():
        yield each
        yield from below(each)

for found in pkgutil.iter_modules(riverrun_airflow.__path__, "riverrun_airflow."):
    import_module(found.name)
for kind in BaseOperator, BaseTrigger:
    print("=" + json.dumps(sorted({each.__module__ for each in below(kind) if "riverrun_airflow" in each.__module__})))
"""


def test_airflow_is_told_of_all_modules_with_operators_sensors_and_triggers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=True,
    )
    operators, triggers = (json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("="))
    provider = get_provider_info()
    assert sorted({*modules(provider, "operators"), *modules(provider, "sensors")}) == operators
    assert sorted(modules(provider, "triggers")) == triggers


def test_what_airflow_is_told_is_as_its_schema_has_it() -> None:
    spec = find_spec("airflow")
    assert spec is not None
    assert spec.origin is not None
    validate(get_provider_info(), json.loads(Path(spec.origin).with_name("provider_info.schema.json").read_text()))


def modules(provider: dict[str, Any], kind: str) -> Iterator[str]:
    return (module for each in provider[kind] for module in each["python-modules"])
