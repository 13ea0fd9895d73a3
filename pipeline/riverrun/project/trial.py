"""A topology in memory over archived records: yesterday's problem on a laptop, without a broker."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.archive.manifest import ArchiveStore
from riverrun.archive.parquet import read_file
from riverrun.errors import ArchiveError, RangeError
from riverrun.records import RAW_TIMESTAMP, OffsetRange, TopicPartition
from riverrun.serde.api import shown_reader
from riverrun.serde.serdes import BYTES
from riverrun.testing.driver import TopologyTestDriver
from riverrun.topics.records import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from riverrun.archive.manifest import TopicManifest
    from riverrun.hosting.application import Application
    from riverrun.records import RawFields, RawRecord
    from riverrun.runtime.recorded_answers import Answers

_EVERYTHING = OffsetRange(0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The records that a trial has read and left out so far: numbers by topic, and by reason."""

    read: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)


class Trial:
    """A run of a topology in memory, over the archived records of a stretch of time.

    Each topic has one partition there, as in `TopologyTestDriver`. So records are late by the time of all partitions together,
    and the state begins empty.

    Args:
        application: The application, with its topology.
        url: Place of the archive.
        since_ms: Time at which the stretch begins, ms since the epoch.
        until_ms: Time at which it ends, exclusive.
        whole: Topics that are read from their first archived record, such as those of tables.
        answers: Recorded answers of look-ups, or the file that has them, instead of calls.
        record_answers: A file to write the answers of look-ups to.
    """

    def __init__(
        self,
        application: Application,
        url: str,
        since_ms: int,
        until_ms: int,
        *,
        whole: Collection[str] = (),
        answers: Answers | None = None,
        record_answers: Path | None = None,
    ) -> None:
        """Look for the topics in the archive."""
        if since_ms >= until_ms:
            message = "The time at which the trial ends does not lie after the one at which it begins"
            raise RangeError(message)
        self._application, self._store = application, ArchiveStore(url)
        self._since_ms, self._until_ms = since_ms, until_ms
        self._answers, self._record_answers = answers, record_answers
        self.result = TrialResult()
        topology = application.topology.resolved(self._store.topics())
        application_topics = {*topology.source_topics, *(t for g in topology.global_stores for t in g.source.topics)}
        unknown = sorted(set(whole) - application_topics)
        if unknown:
            message = f"{application.config.name} does not read {', '.join(unknown)}"
            raise RangeError(message, hint=f"It reads {', '.join(sorted(application_topics))}.")
        self._topology = topology
        self._global = {topic for declared in topology.global_stores for topic in declared.source.topics}
        self._whole = {*whole, *self._global}
        found = {topic: self._store.manifest(topic) for topic in sorted(application_topics)}
        self._manifests = {topic: manifest for topic, manifest in found.items() if manifest and manifest.topic_id}
        self.missing = sorted(found.keys() - self._manifests.keys())
        """Inputs that the archive has nothing of."""
        if not self._manifests:
            message = f"The archive at {url} has none of {', '.join(sorted(application_topics))}"
            raise ArchiveError(message, hint="riverrun archive write archives topics.")

    def outputs(self, topics: Collection[str] = ()) -> Iterator[ReadRecord]:
        """Process the records in the order of their times, and yield what the topology writes, decoded by its serdes.

        Args:
            topics: Topics to yield. Default: all that the topology names.
        """
        wanted = list(topics) or list(self._topology.sink_topics)
        readers = {topic: self._readers_of(topic) for topic in wanted}
        streams, config = self._application.config.streams, self._application.config
        with TopologyTestDriver(
            self._topology,
            streams,
            application_id=config.application_id(),
            schema_registry=config.schema_registry,
            answers=self._answers,
            record_answers=self._record_answers,
        ) as driver:
            inputs = {topic: driver.input_topic(topic, BYTES, BYTES) for topic in self._manifests}
            count = dict.fromkeys(wanted, 0)
            for topic, record in self._records():
                key, value, timestamp, _, headers = record
                self.result.read[topic] = self.result.read.get(topic, 0) + 1
                inputs[topic].pipe_input(key, value, timestamp=timestamp, headers=headers)
                for name in wanted:
                    for written in driver.read_raw(name):
                        yield _decoded(TopicPartition(name, 0), count[name], written, readers[name])
                        count[name] += 1
                self.result.dropped.update(driver.dropped())

    def _readers_of(self, topic: str) -> tuple[Any, Any]:
        sink = self._topology.sink_of(topic)
        if sink is None:
            message = f"{self._application.config.name} does not write {topic}"
            raise RangeError(message, hint=f"It writes {', '.join(self._topology.sink_topics)}.")
        return shown_reader(sink.key_serde), shown_reader(sink.value_serde)

    def _records(self) -> Iterator[tuple[str, RawFields]]:
        """Yield all records in the order in which they are processed."""
        # A global table is complete before any other record, as in a worker.
        for topic in sorted(self._global & self._manifests.keys()):
            yield from self._merged([topic])
        # All others by time; `heapq.merge` keeps those of a partition in their order, even if their times are not.
        yield from self._merged(sorted(self._manifests.keys() - self._global))

    def _merged(self, topics: Iterable[str]) -> Iterator[tuple[str, RawFields]]:
        parts = [
            self._partition(topic, self._manifests[topic], partition)
            for topic in topics
            for partition in range(self._manifests[topic].partitions)
        ]
        return heapq.merge(*parts, key=lambda found: found[1][RAW_TIMESTAMP])

    def _partition(self, topic: str, manifest: TopicManifest, partition: int) -> Iterator[tuple[str, RawFields]]:
        since_ms = 0 if topic in self._whole else self._since_ms
        for file in manifest.of(partition):
            # By the manifest: files that lie outside of the interval are not even opened.
            if not file.records or file.last_ms < since_ms or file.first_ms >= self._until_ms:
                continue
            for batch in read_file(self._store, topic, file, _EVERYTHING):
                for record in batch:
                    if since_ms <= record[RAW_TIMESTAMP] < self._until_ms:
                        yield topic, record


def _decoded(tp: TopicPartition, offset: int, record: RawRecord, readers: tuple[Any, Any]) -> ReadRecord:
    key, value = (
        None if data is None else read(data) for data, read in zip((record.key, record.value), readers, strict=True)
    )
    return ReadRecord(tp, offset, record.timestamp, key, value, record.headers)
