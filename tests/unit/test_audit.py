"""The look for vulnerabilities in locked packages: what it finds fails, and what it cannot look up is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.audit import judged

SAFE: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
OPEN: dict[str, Any] = {"name": "b", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
UNKNOWN: dict[str, Any] = {"name": "c", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        ([SAFE, {**SAFE, "name": "d"}], 0, "No known vulnerabilities in 2 of 2"),
        ([SAFE, UNKNOWN], 0, "No known vulnerabilities in 1 of 2 locked packages; 1 are not in the database"),
        ([SAFE, OPEN], 1, "b: PYSEC-1, mended in 2"),
        ([UNKNOWN], 0, "Skipped"),
        ([], 0, "Skipped"),
    ],
)
def test_vulnerabilities_fail_the_check_and_nothing_else_does(found: list[Any], code: int, message: str) -> None:
    assert judged(json.dumps({"dependencies": found}), "")[0] == code
    assert message in judged(json.dumps({"dependencies": found}), "")[1]


@pytest.mark.parametrize("output", ["", "[]", "{}", "null", "not JSON", '{"dependencies": '])
def test_a_refusal_of_the_network_is_no_failure(output: str) -> None:
    code, message = judged(output, "ConnectionError: no route to host")
    assert code == 0
    assert "Skipped" in message
    assert "no route to host" in message
