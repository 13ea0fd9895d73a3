"""Topologies give what Kafka Streams gave when they run as workers run them: in batches, with generated functions and caches.

The golden files come from a driver that commits after each record. Without caches, commits change nothing: what is written and
held must be equal. With caches only the last update of a key is forwarded, so final tables are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle.batches import in_batches
from tests.oracle.replay import APPLICATION, load, printed, twin, twins
from tests.oracle.scenarios import CLOCK, TOPICS

if TYPE_CHECKING:
    from tests.oracle.replay import Log, Twin

UNKNOWN_INPUTS = {"pattern_source"}
"""Reads topics that the topology does not name."""
NAMES = [
    name
    for group, topologies in TOPICS.items()
    for name, topics in topologies.items()
    if group != "failures" and CLOCK not in topics and name not in UNKNOWN_INPUTS
]
"""All but those with handlers, which take record by record, and those that follow the wall clock."""

STREAMS_OF_UPDATES = {"count_of_counts", "windows_counted_by_key", "table_source_and_count"}
"""They count updates of a table, and a cache forwards fewer."""
HELD_UP = {"suppress_table_until_time_limit", "suppress_counts_until_full"}
"""They keep the last update of a while, and a cache brings updates later."""
IN_ORDER = {
    "table_group_by_reduce",
    "table_group_by_aggregate",
    "filtered_tables_joined_and_grouped",
    "supplied_table_aggregates",
}
"""They chain the texts of a group in the order of updates, and a cache forwards those of each key at another time."""


@pytest.mark.parametrize("name", NAMES)
def test_batches_give_what_kafka_streams_gives(name: str) -> None:
    for number, scenario in enumerate(load(name)["scenarios"]):
        expected = twin(name).canonical(scenario, scenario)
        found = [batched(this, scenario) for this in twins(name)]
        if not scenario["cache"] and "foreign_key" not in name:
            closest = next((one for one in found if in_sequence(one) == in_sequence(expected)), found[0])
            assert in_sequence(closest) == in_sequence(expected), f"{name}, scenario {number}"
            assert closest["stores"] == expected["stores"], f"{name}, scenario {number}"
        elif name not in STREAMS_OF_UPDATES | HELD_UP | IN_ORDER:
            assert tables(expected) in map(tables, found), f"{name}, scenario {number}"


def batched(this: Twin, scenario: dict[str, Any]) -> dict[str, Any]:
    """A result of batches, without what may differ."""
    found = in_batches(this, scenario)
    found["topics"] |= printed()
    return this.canonical(scenario, found)


def in_sequence(result: dict[str, Any]) -> dict[str, Log]:
    """Topics without changelogs: what was written, whichever record of the input caused it."""
    return {topic: [record[1:] for record in log] for topic, log in result["topics"].items() if not is_log(topic)}


def tables(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of topics and stores at the end, without times and headers. A group that counts no rows any more has none."""
    outputs = {topic: log for topic, log in result["topics"].items() if not topic.startswith(f"{APPLICATION}-")}
    found = {topic: {key: value for _, key, value, *_ in log} for topic, log in outputs.items()}
    found |= {name: {key: value for key, value, _ in rows} for name, rows in result["stores"].items()}
    full = {name: {key: value for key, value in rows.items() if value not in _NO_ROW} for name, rows in found.items()}
    return {name: rows for name, rows in full.items() if rows}


_NO_ROW = (None, "0", "\0" * 8)


def is_log(topic: str) -> bool:
    """Whether it is a changelog: how often a key is written there depends on commits."""
    return topic.endswith("-changelog")
