"""Random topologies give what Kafka Streams 4.3.1 gave; `make oracle` compares others each time."""

from __future__ import annotations

import pytest

from tests.oracle.fuzz import GOLDEN, GOLDEN_SEEDS, digest_of, explained, shrunk
from tests.oracle.random_topologies import build, code_of, random_case
from tests.oracle.replay import load

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_random_topologies_give_what_kafka_streams_gives(part: int) -> None:
    golden, differing = load(GOLDEN), []
    assert len(golden) > 0.9 * len(GOLDEN_SEEDS)
    for seed, expected in list(golden.items())[part::PARTS]:
        case = random_case(int(seed))
        if not any(
            "failure" not in result and digest_of(case, result, expected["stores"]) == expected
            for result in explained(case)
        ):
            differing.append(f"PYTHONPATH=. .venv/bin/python -m tests.oracle.fuzz --cases 1 --seed {seed}")
    assert differing == []


def test_a_case_is_shrunk_to_what_makes_the_difference() -> None:
    case = next(case for case in map(random_case, range(1000)) if any(step["op"] == "join" for step in case["steps"]))
    small = shrunk(case, lambda other: any(step["op"] == "join" for step in other["steps"]))
    assert small["records"] == []
    assert small["steps"][-1]["op"] == "join"
    assert len(small["steps"]) <= 3
    assert "JoinWindows" in code_of(small)
    assert build(small).describe()
