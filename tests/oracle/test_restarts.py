"""Results do not depend on restarts: scenarios that are cut between two records give what they give in one go."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.depth import depth
from tests.oracle.replay import digest, load, recorded, twin
from tests.oracle.scenarios import COMPLETE, TOPICS, scenarios
from tests.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.testing import TopologyTestDriver

EVERYDAY = range(18, 24)
THE_OTHERS = range(24, depth(42, 60))  # the rest in `make deep`
OF_THIS_PROCESS = {"a_punctuation_fails", "punctuate_wall_clock", "least_recently_used"}
"""A processor that counts its calls, one that follows the wall clock, and one whose reads are in no changelog."""
WITH_TIMES = {"windows", "suppress", "joins", "cogroup", "sources", "suppliers"}
"""The groups of which nearly all topologies look at event time; of the others, a name says so."""
NAMES = [
    name
    for group, names in TOPICS.items()
    for name in names
    if name not in OF_THIS_PROCESS
    and (group in WITH_TIMES or any(word in name for word in ("window", "tumbling", "hopping", "join", "punctuat")))
]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_that_is_cut_anywhere_gives_what_it_gives_in_one_go(name: str) -> None:
    compare(name, EVERYDAY)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_other_scenario_that_is_cut_gives_what_it_gives_in_one_go(name: str) -> None:
    compare(name, THE_OTHERS)


def compare(name: str, numbers: range) -> None:
    """Kafka Streams' result is compared first, as it is known; where it differs, that of one go tells the reason."""
    this, digests = twin(name), load("digests")[name]
    for number, scenario in zip(numbers, scenarios([name], numbers), strict=True):
        cut = this.canonical(scenario, this.replayed(scenario, restarting(scenario, number)))
        if number >= COMPLETE and digest(cut) == recorded(digests, number):
            continue
        whole = this.canonical(scenario, this.replayed(scenario))
        for part in "topics", "stores":
            assert cut[part] == whole[part], f"{name}, scenario {number}"


def restarting(scenario: dict[str, Any], number: int) -> Callable[[TopologyTestDriver, int], None]:
    """Restarts before one record, two, or all of them; some without the local state."""
    count = len(scenario["records"])
    cuts = range(1, count) if number % 4 == 0 else Random(number).sample(range(1, count), number % 4)
    restarts: dict[TopologyTestDriver, Restarts] = {}

    def before(driver: TopologyTestDriver, index: int) -> None:
        known = restarts.setdefault(driver, Restarts(driver, loses_state=number % 2 == 0))
        if index in cuts:
            known.restart()

    return before
