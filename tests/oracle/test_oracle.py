"""Every topology's results equal those of Kafka Streams 4.3.1: structure, records, changelogs and stores.

The golden files hold what its own TopologyTestDriver did with the same inputs (`make oracle` writes them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import StreamsBuilder, Topology, TopologyError
from riverrun.config import TopologyConfig
from riverrun.runtime.layout import plan_layout
from riverrun.state.suppliers import ADDITIONAL_RETENTION_MS, FOR_EVER, NEVER
from tests.depth import DEEP
from tests.oracle.replay import APPLICATION, builder_of, digest, load, recorded, twin, twins
from tests.oracle.scenarios import COMPLETE, SCENARIOS, TOPICS, scenarios
from tests.oracle.topologies_sources import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = [name for names in TOPICS.values() for name in names]
EVERYDAY = range(COMPLETE, COMPLETE + 10)
THE_OTHERS = range(EVERYDAY.stop, SCENARIOS) if DEEP else range(60, 120)
"""All in `make deep`; `test_restarts.py` replays earlier ones."""
EXPLAINED = {
    "session_count": {62, 89, 158, 174},
    "session_count_with_serdes": {54, 132},
    "suppress_sessions": {108, 111, 125},
    "emit_on_close_sliding": {130, 192},
    "supplied_stream_join": {153, 162, 164},
}
"""A session ended exactly a retention ago, a sliding window begins behind a late record; or a null value has moved the
time of a store in memory (DIFFERENCES.md)."""
NAMED_BY_SUPPLIERS = {"supplied_stream_join", "supplied_stream_left_join"}
"""Joins whose supplied stores, in Kafka Streams, have no name (DIFFERENCES.md)."""
OWN_SETTINGS = {
    name: "cleanup.policy" if "join" in name else "retention.ms"
    for name in TOPICS["suppliers"]
    if any(word in name for word in ("windows", "windowed", "sessions", "stream_"))
}
"""The setting of the changelogs of supplied stores that differs (DIFFERENCES.md)."""


@pytest.mark.parametrize("name", NAMES)
def test_the_topology_is_that_of_kafka_streams(name: str) -> None:
    golden = load(name)
    topology = twin(name).topology
    assert normalised(topology.describe()) == normalised(golden["describe"])
    # Kafka Streams lists the topics of others that tables are restored from as well, and leaves them as they are.
    theirs = {topic: config for topic, config in golden["internal_topics"].items() if topic.startswith(APPLICATION)}
    own = OWN_SETTINGS.get(name)
    assert without(own, internal_topics(topology)) == without(own, kept(theirs))


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in TOPICS.items() for name in names])
def test_what_has_no_name_is_what_kafka_streams_says(group: str, name: str) -> None:
    builder = StreamsBuilder(TopologyConfig(ensure_explicit_internal_resource_naming=True))
    builder_of(group, name)(builder, lambda _words: None)
    said: list[str] = []
    if name in AFTERWARDS:
        return  # no names are made for it
    try:
        builder.build()
    except TopologyError as error:
        said = str(error).partition("\nHint")[0].splitlines()
    theirs = [] if name in NAMED_BY_SUPPLIERS else load("unnamed")[name]
    assert said == theirs


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_gives_what_kafka_streams_gives(name: str) -> None:
    for number, scenario in enumerate(load(name)["scenarios"]):
        expected = twin(name).canonical(scenario, scenario)
        found = [this.canonical(scenario, this.replayed(scenario)) for this in twins(name)]
        closest = expected if expected in found else found[0]
        for part in expected:
            assert closest[part] == expected[part], f"{name}, scenario {number}"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_has_the_digest_of_what_kafka_streams_gives(name: str) -> None:
    assert differing(name, EVERYDAY) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_other_scenario_has_the_digest_of_what_kafka_streams_gives(name: str) -> None:
    assert differing(name, THE_OTHERS) == []


def differing(name: str, numbers: Sequence[int]) -> list[str]:
    """Commands that show both results of each scenario that differs."""
    digests = load("digests")[name]
    return [
        f"PYTHONPATH=. .venv/bin/python -m tests.oracle.show {name} {number}"
        for number, scenario in zip(numbers, scenarios([name], numbers), strict=True)
        if number not in EXPLAINED.get(name, ())
        and not any(
            digest(this.canonical(scenario, this.replayed(scenario))) == recorded(digests, number)
            for this in twins(name)
        )
    ]


def without(setting: str | None, topics: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {topic: {key: value for key, value in config.items() if key != setting} for topic, config in topics.items()}


def kept(topics: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Settings that keep changelogs for ever which brokers delete from, or compact, by their own clock (DIFFERENCES.md)."""
    by_default = {
        name for name, config in topics.items() if int(config.get("retention.ms", -1)) >= ADDITIONAL_RETENTION_MS
    }
    versioned = {name for name, config in topics.items() if "min.compaction.lag.ms" in config}
    return {
        name: config
        | ({"retention.ms": FOR_EVER} if name in by_default else {})
        | ({"min.compaction.lag.ms": NEVER} if name in versioned else {})
        for name, config in topics.items()
    }


def normalised(description: str) -> list[str]:
    """Lines; what a function that chooses topics is called is its own language's."""
    return [line.partition("(extractor class:")[0] for line in description.splitlines()]


def internal_topics(topology: Topology) -> dict[str, dict[str, str]]:
    external = set(topology.source_topics)
    external |= {topic for store in topology.global_stores for topic in store.source.topics}
    layout = plan_layout(topology, APPLICATION, dict.fromkeys(external, 1))
    return {topic.name: dict(topic.config) for topic in layout.internal_topics}
