"""The published packages: built, installed in separate environments, and run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG
from tests.presence import present
from tests.system.packages import UV, build_packages, install_wheels

if TYPE_CHECKING:
    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.only_deep]

TOPOLOGY = """
from riverrun import LONG, STRING, Consumed, Grouped, Produced, StreamsBuilder, Topology


def build(builder: StreamsBuilder) -> Topology:
    words = builder.stream("{name}.in", Consumed(STRING, STRING)).group_by(lambda k, v: v, Grouped(STRING, STRING))
    words.count().to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist."""
    directory = tmp_path_factory.mktemp("built")
    build_packages(directory)
    return directory


def test_wheel_and_sdist_hold_the_packages_and_nothing_else(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("riverrun-*.whl"), built.glob("riverrun-*.tar.gz")
    installed = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in installed if not name.endswith(".dist-info")} == {"riverrun"}
    with tarfile.open(sdist) as archive:
        sources = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"pipeline", "plugins", "pyproject.toml", "README.md", "LICENSE"} <= sources
    assert not {".venv", ".riverrun", "spark-warehouse"} & sources


def test_a_worker_runs_where_only_the_wheel_is_installed(
    built: Path, broker: Broker, unique: str, tmp_path: Path
) -> None:
    (wheel,) = built.glob("riverrun-*.whl")
    environment = tmp_path / "environment"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    listed = subprocess.run(
        [UV, "pip", "list", "--format", "json", "--python", python], capture_output=True, check=True
    )
    names = {package["name"] for package in json.loads(listed.stdout)}
    assert not {"pyspark", "apache-airflow", "great-expectations", "pandas"} & names
    assert len(names) < 30, "README.md says that there are 23"
    size = sum(file.stat().st_size for file in (environment / "lib").rglob("*") if file.is_file())
    assert size < 120_000_000, "README.md says that it has 102 MB"
    project = tmp_path / "project"
    project.mkdir()
    (project / "counted.py").write_text(TOPOLOGY.format(name=unique))
    servers = json.dumps(broker.bootstrap_servers)
    (project / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = {servers}\n[apps.{unique}]\ntopology = "counted:build"\n'
    )
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", word.encode(), 1) for word in ["to", "be", "or", "not", "to", "be"]])

    def riverrun(*arguments: str) -> str:
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(environment / "bin" / "riverrun"), *arguments]
        done = subprocess.run(
            command, cwd=project, env=outside, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    riverrun("worker", unique, "--until-caught-up")
    assert "0 offsets behind" in riverrun("lag", unique)
    counts = {record.key: LONG.deserialize(present(record.value)) for record in broker.read(f"{unique}.out")}
    assert counts == {b"to": 2, b"be": 2, b"or": 1, b"not": 1}


def test_airflow_knows_connection_operators_and_plugin_of_the_provider(built: Path, tmp_path: Path) -> None:
    python = install_wheels(built, tmp_path / "environment")
    code = """
import json, riverrun_airflow, riverrun
from airflow.providers_manager import ProvidersManager
from airflow.plugins_manager import get_plugin_info
manager = ProvidersManager()
hook = manager.hooks["riverrun"]
fields = sorted(name for name in manager.connection_form_widgets if name.startswith("extra__riverrun"))
plugin = [each for each in get_plugin_info() if each["name"] == "riverrun"]
link = "riverrun_airflow.links.ApplicationLink" in manager.extra_links_class_names
print(json.dumps([riverrun_airflow.__file__, hook.hook_name, hook.package_name, fields, len(plugin), link]))
"""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env=outside | {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    file, name, package, fields, plugins, link = json.loads(done.stdout.splitlines()[-1])
    assert Path(file).is_relative_to(tmp_path / "environment")
    assert (name, package, plugins, link) == ("Riverrun", "riverrun-airflow", 1, True)
    assert fields == ["extra__riverrun__kafka", "extra__riverrun__master", "extra__riverrun__project"]
