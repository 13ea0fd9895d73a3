"""Fixtures of all tests with Airflow."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of SQLite for homes of Airflow to have a copy of: to make one takes as long as most tests with it."""
    home = tmp_path_factory.mktemp("migrated")
    environ = {**os.environ, "AIRFLOW_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environ, check=True, capture_output=True)
    return home / "airflow.db"


@pytest.fixture(autouse=True)
def level_of_logging_as_before() -> Iterator[None]:
    """Airflow sets the level of the root logger when it is imported; other tests of this process look at what is logged."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
