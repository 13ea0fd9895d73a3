"""`riverrun init` creates a project that runs."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.output import echo
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 100
_FOLDERS = frozenset({"riverrun", "test", "tests", "dags"})
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")

_FILES: Mapping[str, str] = {
    "streams.toml": """\
# The applications of this project, and the brokers they run on.
[kafka]
"bootstrap.servers" = "127.0.0.1:19092"       # the embedded broker: `riverrun broker start`

[apps.{name}]
topology = "{module}:build"
version = "v1"                                # application.id = {name}-v1
schedule = "0 */6 * * *"                      # bounded runs by Airflow, every six hours

[apps.{name}.config]                          # Kafka Streams' settings by their own names
"processing.guarantee" = "exactly_once_v2"
""",
    "{module}.py": '''\
"""Counts clicks per user and five minutes."""

from __future__ import annotations

from datetime import timedelta

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    Topology,
    windowed,
)


def build(builder: StreamsBuilder) -> Topology:
    """Describe the topology; workers, bounded runs on Spark and tests run this one."""
    counts = (
        builder.stream("clicks", Consumed(STRING, JSON))
        .filter(lambda user, click: click["page"] != "/health")
        .group_by_key()
        .windowed_by(TimeWindows.of(timedelta(minutes=5), grace=timedelta(minutes=1)))
        .count(Materialized(name="clicks-per-user"))
    )
    counts.to_stream().to("click-counts", Produced(windowed(STRING), LONG))
    return builder.build()
''',
    "tests/test_{module}.py": '''\
"""The topology, run in memory: no broker is needed."""

from __future__ import annotations

from datetime import timedelta

from riverrun import JSON, LONG, STRING, StreamsBuilder, windowed
from riverrun.testing import TopologyTestDriver

from {module} import build


def test_clicks_are_counted_per_user_without_health_checks() -> None:
    with TopologyTestDriver(build(StreamsBuilder())) as driver:
        clicks = driver.input_topic("clicks", STRING, JSON)
        for page in "/", "/health", "/cart":
            clicks.pipe_input("ann", {{"page": page}}, timestamp=1)
        counts = driver.output_topic("click-counts", windowed(STRING, timedelta(minutes=5)), LONG)
        assert [(record.key.key, record.value) for record in counts.read_records_to_list()] == [("ann", 1), ("ann", 2)]
''',
    "dags/{module}_dags.py": '''\
"""Airflow's DAGs: declared in streams.toml, made by the factory.

Airflow reads only files that name both airflow and dag. Needs the provider `riverrun-airflow`.
"""

from __future__ import annotations

from pathlib import Path

from riverrun_airflow.dag_factory import dags

globals().update(dags(Path(__file__).resolve().parent.parent / "streams.toml"))
''',
    ".gitignore": """\
__pycache__/
.riverrun/
.pytest_cache/
.venv/
spark-warehouse/
""",
}
"""Templates by path. Names in braces are replaced."""

_NEXT = """Created {directory}. Its test runs in memory; a worker runs on the embedded broker, which needs Java 17:

  cd {directory}
  {tests}
  riverrun broker start
  riverrun topic create clicks click-counts
  riverrun worker {name}
"""


def init(
    name: Annotated[str, typer.Argument(help="Name of the application, and of the new directory.")],
    directory: Annotated[
        Path | None, typer.Option(help="Directory to create; defaults to the application's name.")
    ] = None,
) -> None:
    """Create a project that runs: streams.toml, a topology, its test, a DAG file and .gitignore."""
    module = name.replace("-", "_")
    if len(name) > _LONGEST or not _NAME.fullmatch(name) or keyword.iskeyword(module) or module in _FOLDERS:
        message = f"{name[: 2 * _LONGEST]!r} cannot be the name of an application and its Python module"
        hint = f"Use at most {_LONGEST} lower-case letters, digits and hyphens, as in click-counts."
        raise ConfigError(message, hint=hint)
    target = directory or Path(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        message = f"{target} already exists, and is not empty"
        raise ConfigError(message, hint="Choose another name, or --directory. Nothing was changed.")
    if _is_taken(module):
        message = f"The module of application {name} would hide the existing Python module {module}"
        raise ConfigError(message, hint=f"Choose another name, such as {name}-app.")
    try:
        for path, text in _FILES.items():
            file = target / path.format(module=module)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format(name=name, module=module))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    echo(_NEXT.format(name=name, directory=target, tests="\n  ".join(_tests())))


def _tests() -> list[str]:
    """Return the commands that run the tests; pytest comes with no extra."""
    return [*([] if find_spec("pytest") else ["python -m pip install pytest"]), "python -m pytest"]


def _is_taken(module: str) -> bool:
    """Return whether Python has such a module."""
    # Folders without code are namespace packages: they have no origin, and do not count.
    found = find_spec(module)
    return module in sys.stdlib_module_names or (found is not None and found.origin is not None)
