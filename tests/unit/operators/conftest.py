"""Fixtures of tests of operators."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["with its state", "from the changelog"])
def loses_state(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "from the changelog")
