"""Cases of SQL (`sql/*.json`): statements, inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.sql.run_case import cases, run

CASES = Path(__file__).parent / "sql"
ALL = [(f"{path.stem}: {name}", case) for path in sorted(CASES.glob("*.json")) for name, case in cases(path)]


@pytest.mark.driver
@pytest.mark.parametrize("case", [case for _, case in ALL], ids=[name for name, _ in ALL])
def test_statements_make_the_outputs_of_their_case(case: dict[str, Any]) -> None:
    assert run(case) == "passed"
