"""Fixtures of all tests with Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of SQLite for homes of Airflow to have a copy of: to make one takes as long as most tests with it."""
    home = tmp_path_factory.mktemp("migrated")
    environ = {**os.environ, "AIRFLOW_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environ, check=True, capture_output=True)
    return home / "airflow.db"
