"""Fixtures of all tests with Airflow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def level_of_logging_as_before() -> Iterator[None]:
    """Airflow sets the level of the root logger when it is imported; other tests of this process look at what is logged."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
