"""Replays scenarios through Riverrun, and brings the results of both sides into one form.

Both forms of a scenario are equal unless there is a bug; what may differ, DIFFERENCES.md says.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import re
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun import STRING, StreamsBuilder, Topology, ValueAndTimestamp
from riverrun.dsl import grouping
from riverrun.processor.handlers import SET_ASIDE
from riverrun.state.api import StoreKind
from riverrun.testing import ChangedValueWarning, TopologyTestDriver
from tests.oracle.scenarios import CLOCK, COMPLETE, OPTIMIZED, TOPICS, WITHOUT_TIMES
from tests.oracle.topologies import PRINTED, ms
from tests.oracle.topologies_failures import SETTINGS
from tests.oracle.topologies_sources import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Log = list[list[Any]]

APPLICATION = "oracle"
_DIGEST = 8
GOLDEN = Path(__file__).parent / "golden"
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
    "suppliers": "topologies_suppliers",
    "changing": "topologies_changing",
}
"""The module with the topologies of a group."""

_NO_HEADERS = re.compile("SUBSCRIPTION-STATE-STORE|subscription-store")
"""Changelogs to which Kafka Streams writes headers that nobody restores."""

_OWN_WORDS = {f"__streams.errors.{name}" for name in ("exception", "message", "stacktrace")}
"""Headers of dead letters that each language says in its own way."""


@dataclass(frozen=True)
class Twin:
    """One topology, ready to be replayed."""

    name: str
    topology: Topology
    said: list[str]
    """The text of its side effects."""

    def replayed(
        self,
        scenario: dict[str, Any],
        before: Callable[[TopologyTestDriver, int], object] = lambda _driver, _index: None,
    ) -> dict[str, Any]:
        """Riverrun's result, as `java/Oracle.java` writes it down; `before` is called before each record."""
        settings: dict[str, Any] = dict(SETTINGS) if self.may_fail else {}
        if not scenario["cache"]:
            settings["statestore.cache.max.bytes"] = 0
        topics: dict[str, Log] = {}
        self.said.clear()
        with (
            warnings.catch_warnings(),
            TopologyTestDriver(self.topology, settings, application_id=APPLICATION) as driver,
        ):
            warnings.simplefilter("ignore", ChangedValueWarning)
            given = cache(partial(driver.input_topic, key_serde=STRING, value_serde=STRING))
            for index, (topic, key, value, timestamp, headers) in enumerate(scenario["records"]):
                before(driver, index)
                if topic == CLOCK:
                    driver.advance_wall_clock_time(ms(timestamp % 150))
                else:
                    raw_headers = tuple((name, text.encode()) for name, text in headers)
                    given(topic).pipe_input(key, value, timestamp=timestamp, headers=raw_headers)
                for written in sorted(driver.produced_topic_names()):
                    for record in driver.read_raw(written):
                        names = [[name, latin(data)] for name, data in record.headers]
                        entry = [index, latin(record.key), latin(record.value), record.timestamp, names]
                        topics.setdefault(written, []).append(entry)
                for words in self.said:
                    topics.setdefault("~said", []).append([index, None, words, -1, []])
                self.said.clear()
            held = driver.get_all_state_stores()
            stores = {name: list(entries_of(held[name])) for name in compared_stores(self.name)}
            dropped = driver.metrics()["dropped-records-total"]
        return {"topics": topics | printed(), "stores": stores, "dropped": dropped}

    @property
    def may_fail(self) -> bool:
        """Whether handlers are set."""
        return self.name in TOPICS["failures"]

    def canonical(self, scenario: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """A result without what may differ, and with everything else."""
        topics = {topic: self._canonical_log(topic, log, scenario) for topic, log in result["topics"].items()}
        last_ms = max(record[3] for record in scenario["records"]) + 1  # sliding windows may start behind a record
        stores = {
            name: self._canonical_entries(name, result["stores"][name], last_ms) for name in compared_stores(self.name)
        }
        if self.name in WITHOUT_TIMES:
            topics = {topic: [[*record[:3], None, *record[4:]] for record in log] for topic, log in topics.items()}
            stores = {name: [[key, value, None] for key, value, _ in entries] for name, entries in stores.items()}
        canonical = {"topics": {topic: log for topic, log in topics.items() if log}, "stores": stores}
        return canonical | {"dropped": result["dropped"]} if self.may_fail else canonical

    def _canonical_log(self, topic: str, log: Log, scenario: dict[str, Any]) -> Log:
        if topic.endswith("-changelog"):
            return self._canonical_changelog(topic, log)
        if not scenario["cache"] and "session" in self.name:
            return [record[:4] for record in log]  # sessions are forwarded without headers if the store does not cache
        if topic == "letters":
            return [
                [*record, [[n, "" if n in _OWN_WORDS else text] for n, text in headers if n != SET_ASIDE]]
                for *record, headers in log
            ]
        return log

    def _canonical_changelog(self, topic: str, log: Log) -> Log:
        """The records restored from it: of each step one record per key."""
        builder = self.topology.stores[topic.removeprefix(f"{APPLICATION}-").removesuffix("-changelog")]
        if builder.kind is StoreKind.JOIN_WINDOW:  # what is kept of one stream for the other
            values = [record for record in log if record[2] is not None]
            kept = _not_expired(values, builder.retention_ms, _timestamp)
            return [
                [index, key[:-4], value, timestamp] for index, key, value, timestamp, _ in kept
            ]  # no sequence number
        if builder.kind is StoreKind.VERSIONED:
            log = _not_expired(log, builder.retention_ms + 1, _timestamp)
        if builder.kind is StoreKind.WINDOW:
            log = _not_expired(log, builder.retention_ms, _window_start)
        if builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE and builder.max_entries is not None:
            log = [record for record in log if record[2] is not None]  # Kafka Streams does not log what a table forgets
        if _NO_HEADERS.search(topic):
            log = [[*record, []] for *record, _ in log]
        if builder.kind is StoreKind.BUFFER or topic.endswith("-Buffer-changelog"):  # Java's carry the wall clock
            log = [[index, key, value, None, headers] for index, key, value, _, headers in log]
        return sorted({(index, key): [index, key, *rest] for index, key, *rest in log}.values(), key=lambda r: r[:2])

    def _canonical_entries(self, store: str, entries: Log, last_ms: int) -> Log:
        """The rows held, without windows that may have been dropped."""
        retention_ms = self.topology.stores[store].retention_ms if store in self.topology.stores else 0
        return sorted(e for e in entries if not retention_ms or int(e[0].rpartition("@")[2]) > last_ms - retention_ms)


@contextmanager
def closing_like_kafka_streams() -> Iterator[None]:
    """Topologies built meanwhile forward suppressed sessions and sliding windows while a last record may change them."""
    after_end_ms = grouping._AFTER_END_MS
    grouping._AFTER_END_MS = 0
    try:
        yield
    finally:
        grouping._AFTER_END_MS = after_end_ms


def twins(name: str) -> list[Twin]:
    """The topology of that name, and how Kafka Streams closes its windows if that differs (DIFFERENCES.md).

    A scenario that one of them explains has no other difference.
    """
    return [twin(name), _closing_early(name)] if name == "suppress_sessions" else [twin(name)]


@cache
def _closing_early(name: str) -> Twin:
    with closing_like_kafka_streams():
        return twin.__wrapped__(name)


@cache
def twin(name: str) -> Twin:
    """The topology of that name."""
    group = next(group for group, names in TOPICS.items() if name in names)
    said: list[str] = []
    return Twin(name, build(builder_of(group, name), said.append), said)


def builder_of(group: str, name: str) -> Callable[..., None]:
    """Builds a topology: a function of a builder and of a sink for words."""
    builder: Callable[..., None] = getattr(importlib.import_module(f"tests.oracle.{MODULES[group]}"), name)
    return builder


def build(steps: Callable[..., None], say: Callable[[str], None]) -> Topology:
    """The topology, optimised if it is one of those."""
    builder = StreamsBuilder()
    steps(builder, say)
    if steps.__name__ in AFTERWARDS:
        return AFTERWARDS[steps.__name__](Topology())
    return builder.build(optimization="all" if steps.__name__ in OPTIMIZED else "none")


@cache
def load(name: str) -> Any:
    """A golden file."""
    return json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))


def save(name: str, golden: Any) -> None:
    """Write a golden file, always of the same bytes."""
    data = json.dumps(golden, separators=(",", ":"), ensure_ascii=False).encode()
    (GOLDEN / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))


@cache
def compared_stores(name: str) -> set[str]:
    """The stores of a topology that hold plain values: what Kafka Streams has in them is known."""
    return set.intersection(*(set(scenario["stores"]) for scenario in load(name)["scenarios"]))


def digest(canonical: dict[str, Any]) -> str:
    """The characters that stand for a result."""
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def recorded(digests: str, number: int) -> str:
    """Of the digests of a topology's results in Kafka Streams, that of a scenario behind the complete ones."""
    start = _DIGEST * (number - COMPLETE)
    return digests[start : start + _DIGEST]


def printed() -> dict[str, Log]:
    """The text printed to files, which exist once the driver is closed."""
    logs: dict[str, Log] = {}
    for path in sorted(PRINTED.iterdir()):
        logs[f"~{path.name}"] = [[-1, None, line, -1, []] for line in path.read_text("utf-8").splitlines()]
        path.unlink()
    return logs


def entries_of(store: Any) -> Iterator[list[Any]]:
    """The rows of a store: key, value, timestamp or None."""
    for entry in store.all():
        key = entry[0] if len(entry) == 2 else f"{entry[0]}@{entry[1]}"
        value, timestamp = entry[-1], None
        if isinstance(value, ValueAndTimestamp):
            value, timestamp = value
        yield [str(key), str(value), timestamp]


def latin(data: bytes | None) -> str | None:
    """Bytes as the golden files hold them."""
    return None if data is None else data.decode("latin-1")


def _not_expired(log: Log, retention_ms: int, time_of: Callable[[list[Any]], int]) -> Log:
    """A changelog without what had expired when it came: Kafka Streams writes it, but restores it into nothing."""
    kept, observed = [], -1
    for record in log:
        observed = max(observed, time_of(record))
        if time_of(record) > observed - retention_ms:
            kept.append(record)
    return kept


def _timestamp(record: list[Any]) -> int:
    return int(record[3])


def _window_start(record: list[Any]) -> int:
    return int.from_bytes(record[1][-12:-4].encode("latin-1"))
