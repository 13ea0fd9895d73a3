"""Every topology gives what Kafka Streams 4.3.1 gave: structure, records, changelogs and stores.

The golden files hold what its own TopologyTestDriver did with the same inputs (`make oracle` writes them).
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import STRING, StreamsBuilder, Topology, TopologyError, ValueAndTimestamp
from pipeline.config import TopologyConfig
from pipeline.runtime.layout import plan_layout
from pipeline.state.api import StoreKind
from pipeline.testing import TopologyTestDriver
from tests.oracle.scenarios import CLOCK, OPTIMIZED, TOPICS
from tests.oracle.topologies import ms
from tests.oracle.topologies_failures import SETTINGS
from tests.oracle.topologies_sources import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Log = dict[str, list[list[Any]]]

APPLICATION = "oracle"
MODULES = {
    "streams": "topologies",
    "windows": "topologies_windows",
    "suppress": "topologies_suppress",
    "joins": "topologies_joins",
    "branches": "topologies_branches",
    "tables": "topologies_tables",
    "cogroup": "topologies_cogroup",
    "foreign_keys": "topologies_foreign_keys",
    "failures": "topologies_failures",
    "optimized": "topologies_optimized",
    "sources": "topologies_sources",
}
"""Where the topologies of a group are."""
JOIN_STORE = re.compile(r"((JOIN|OUTER)(THIS|OTHER)-\d{10}|(this|other)-join)-store-changelog$")
"""Changelogs of the stores that keep one stream for the other."""

NO_HEADERS = re.compile("SUBSCRIPTION-STATE-STORE|subscription-store")
"""Changelogs to which Kafka Streams writes headers that nobody restores."""


def cases() -> Iterator[Any]:
    for group, names in TOPICS.items():
        twins = importlib.import_module(f"tests.oracle.{MODULES[group]}")
        yield from (pytest.param(name, getattr(twins, name), id=name) for name in names)


CASES = list(cases())


@pytest.mark.parametrize(("name", "twin"), CASES)
def test_the_topology_is_that_of_kafka_streams(name: str, twin: Callable[..., None]) -> None:
    golden = load(name)
    topology = build(twin, [])
    assert normalised(topology.describe()) == normalised(golden["describe"])
    # Kafka Streams lists the topics of others that tables are restored from as well, and leaves them as they are.
    theirs = {topic: config for topic, config in golden["internal_topics"].items() if topic.startswith(APPLICATION)}
    assert internal_topics(topology) == theirs


@pytest.mark.parametrize(("name", "twin"), CASES)
def test_what_has_no_name_is_what_kafka_streams_says(name: str, twin: Callable[..., None]) -> None:
    builder = StreamsBuilder(TopologyConfig(ensure_explicit_internal_resource_naming=True))
    twin(builder, lambda _words: None)
    said: list[str] = []
    if name in AFTERWARDS:
        return  # no names are made for it
    try:
        builder.build()
    except TopologyError as error:
        said = str(error).partition("\nHint")[0].splitlines()
    assert said == load("unnamed")[name]


@pytest.mark.parametrize(("name", "twin"), CASES)
def test_every_scenario_gives_what_kafka_streams_gives(name: str, twin: Callable[..., None]) -> None:
    for number, scenario in enumerate(load(name)["scenarios"]):
        fails = name in TOPICS["failures"]
        topics, stores, dropped = run(twin, scenario, SETTINGS if fails else {})
        where = f"{name}, scenario {number}"
        assert topics.keys() == scenario["topics"].keys(), where
        for topic, expected in scenario["topics"].items():
            if JOIN_STORE.search(topic):
                assert kept_for_joins(topics[topic], twin) == kept_for_joins(expected, twin), f"{where}, {topic}"
            elif topic.endswith("-changelog"):
                kept = not_expired(expected, history_ms(twin, topic))
                assert_same_changelog(topics[topic], kept, f"{where}, {topic}")
            elif not scenario["cache"] and "session" in name:
                assert without_headers(topics[topic]) == without_headers(expected), f"{where}, {topic}"
            elif topic == "letters":
                assert without_traces(topics[topic]) == without_traces(expected), f"{where}, {topic}"
            else:
                assert topics[topic] == expected, f"{where}, {topic}"
        assert not fails or dropped == scenario["dropped"], where
        for store, expected in scenario["stores"].items():
            held, retention_ms = stores[store]
            differing = [entry for entry in held + expected if entry not in held or entry not in expected]
            last_ms = max(record[3] for record in scenario["records"]) + 1  # sliding windows may start behind a record
            unexplained = [entry for entry in differing if not retention_ms or start_of(entry) > last_ms - retention_ms]
            assert unexplained == [], f"{where}, {store}"


def load(name: str) -> Any:
    return json.loads(gzip.decompress((Path(__file__).parent / f"golden/{name}.json.gz").read_bytes()))


def build(twin: Callable[..., None], said: list[str]) -> Topology:
    builder = StreamsBuilder()
    twin(builder, said.append)
    if twin.__name__ in AFTERWARDS:
        return AFTERWARDS[twin.__name__](Topology())
    return builder.build(optimization="all" if twin.__name__ in OPTIMIZED else "none")


def run(
    twin: Callable[..., None], scenario: dict[str, Any], settings: dict[str, str]
) -> tuple[Log, dict[str, Any], int]:
    said: list[str] = []
    topology = build(twin, said)
    config = settings if scenario["cache"] else {**settings, "statestore.cache.max.bytes": 0}
    topics: Log = {}
    with TopologyTestDriver(topology, config, application_id=APPLICATION) as driver:
        for index, (topic, key, value, timestamp, headers) in enumerate(scenario["records"]):
            raw_headers = tuple((name, text.encode()) for name, text in headers)
            if topic == CLOCK:
                driver.advance_wall_clock_time(ms(timestamp % 150))
            else:
                given = driver.input_topic(topic, STRING, STRING)
                given.pipe_input(key, value, timestamp=timestamp, headers=raw_headers)
            for written in sorted(driver.produced_topic_names()):
                for record in driver.read_raw(written):
                    names = [[name, latin(data)] for name, data in record.headers]
                    entry = [index, latin(record.key), latin(record.value), record.timestamp, names]
                    topics.setdefault(written, []).append(entry)
            for words in said:
                topics.setdefault("~said", []).append([index, None, words, -1, []])
            said.clear()
        stores = {
            name: (list(entries(store)), retention_ms(topology, name))
            for name, store in driver.get_all_state_stores().items()
            if name in scenario["stores"]
        }
        return topics, stores, driver.metrics()["dropped-records-total"]


def entries(store: Any) -> Iterator[list[Any]]:
    for entry in store.all():
        key = entry[0] if len(entry) == 2 else f"{entry[0]}@{entry[1]}"
        value, timestamp = entry[-1], None
        if isinstance(value, ValueAndTimestamp):
            value, timestamp = value
        yield [str(key), str(value), timestamp]


def retention_ms(topology: Topology, store: str) -> int:
    """How long windows are kept, 0 if it holds none. Older ones may be there or not (DIFFERENCES.md)."""
    return topology.stores[store].retention_ms if store in topology.stores else 0


def start_of(entry: list[Any]) -> int:
    return int(entry[0].rpartition("@")[2])


def latin(data: bytes | None) -> str | None:
    """Bytes as the golden files hold them."""
    return None if data is None else data.decode("latin-1")


def without_headers(log: list[list[Any]]) -> list[list[Any]]:
    """Kafka Streams forwards sessions without headers if the store does not cache (DIFFERENCES.md)."""
    return [record[:4] for record in log]


def without_traces(log: list[list[Any]]) -> list[list[Any]]:
    """Dead letters; what failed is said in each language's own words."""
    own = {f"__streams.errors.{name}" for name in ("exception", "message", "stacktrace")}
    return [[*record, [[n, "" if n in own else text] for n, text in headers]] for *record, headers in log]


def kept_for_joins(log: list[list[Any]], twin: Callable[..., None]) -> list[tuple[int, str, str, int]]:
    """What can be restored: no tombstones, nothing that had expired when it came, no sequence numbers (DIFFERENCES.md)."""
    retention_ms = next(b.retention_ms for b in build(twin, []).stores.values() if b.retention_ms)
    kept, observed = [], -1
    for index, key, value, timestamp, _ in log:
        if value is not None:
            observed = max(observed, timestamp)
            if timestamp > observed - retention_ms:
                kept.append((index, key[:-4], value, timestamp))
    return kept


def history_ms(twin: Callable[..., None], changelog: str) -> int | None:
    """How far back a versioned store reaches; None for other stores."""
    store = build(twin, []).stores[changelog.removeprefix(f"{APPLICATION}-").removesuffix("-changelog")]
    return store.retention_ms if store.kind is StoreKind.VERSIONED else None


def not_expired(log: list[list[Any]], history: int | None) -> list[list[Any]]:
    """The changelog of a versioned store without what had expired when it came (DIFFERENCES.md)."""
    if history is None:
        return log
    kept, observed = [], -1
    for record in log:
        observed = max(observed, record[3])
        if record[3] >= observed - history:
            kept.append(record)
    return kept


def assert_same_changelog(log: list[list[Any]], expected: list[list[Any]], where: str) -> None:
    ours, theirs = last_per_key(log), last_per_key(expected)
    assert ours.keys() == theirs.keys(), where
    for key, (value, timestamp, headers) in theirs.items():
        own_value, own_timestamp, own_headers = ours[key]
        assert own_value == value, f"{where}, {key}"
        if NO_HEADERS.search(where) is None:
            assert own_headers == headers, f"{where}, {key}"
        if timestamp is not None:  # else the producer takes the wall clock
            assert own_timestamp == timestamp, f"{where}, {key}"


def last_per_key(log: list[list[Any]]) -> dict[tuple[int, str], list[Any]]:
    """A commit sends one record per key, where Kafka Streams sends one per write (DIFFERENCES.md)."""
    return {(index, key): rest for index, key, *rest in log}


def normalised(description: str) -> list[str]:
    """Lines; what a function that chooses topics is called is its own language's."""
    return [line.partition("(extractor class:")[0] for line in description.splitlines()]


def internal_topics(topology: Topology) -> dict[str, dict[str, str]]:
    external = set(topology.source_topics)
    external |= {topic for store in topology.global_stores for topic in store.source.topics}
    layout = plan_layout(topology, APPLICATION, dict.fromkeys(external, 1))
    return {topic.name: dict(topic.config) for topic in layout.internal_topics}
