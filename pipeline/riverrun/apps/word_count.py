"""Word count in the Processor API, built node by node.

`WordCountProcessor` splits lines into words and counts them in the store `Counts`; every second of stream time it
forwards all counts and asks for a commit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun import LONG, STRING, Processor, PunctuationType, Record, Stores, Topology

if TYPE_CHECKING:
    from riverrun import KeyValueStore, ProcessorContext, StreamsBuilder

SOURCE_TOPIC = "lines"
SINK_TOPIC = "word-counts"


class WordCountProcessor(Processor[str, str]):
    """Counts words; forwards all counts once per second of stream time."""

    def init(self, context: ProcessorContext) -> None:
        """Open the store and schedule the punctuation."""
        self._context = context
        self._counts: KeyValueStore[str, int] = context.get_state_store("Counts")
        context.schedule(timedelta(seconds=1), PunctuationType.STREAM_TIME, self._forward_all)

    def process(self, record: Record[str, str]) -> None:
        for word in (record.value or "").lower().split():
            self._counts.put(word, (self._counts.get(word) or 0) + 1)

    def _forward_all(self, timestamp: int) -> None:
        for word, count in self._counts.all():
            self._context.forward(Record(word, count, timestamp))
        self._context.commit()


def build(_builder: StreamsBuilder) -> Topology:
    """Build the topology without the DSL."""
    counts = Stores.key_value_store("Counts", STRING, LONG)
    return (
        Topology()
        .add_source("Source", SOURCE_TOPIC, key_serde=STRING, value_serde=STRING)
        .add_processor("Process", WordCountProcessor, "Source")
        .add_state_store(counts, "Process")
        .add_sink("Sink", SINK_TOPIC, "Process", key_serde=STRING, value_serde=LONG)
    )
