"""The documents' own example."""

from __future__ import annotations

from riverrun import LONG, STRING, StreamsBuilder
from riverrun.apps.word_count import SINK_TOPIC, SOURCE_TOPIC, build
from riverrun.testing import TopologyTestDriver


def test_words_are_counted_and_forwarded_once_per_second_of_stream_time() -> None:
    with TopologyTestDriver(build(StreamsBuilder())) as driver:
        lines = driver.input_topic(SOURCE_TOPIC, STRING, STRING)
        counts = driver.output_topic(SINK_TOPIC, STRING, LONG)
        lines.pipe_input(None, "Hello streams", timestamp=0)
        assert counts.read_key_values_to_list() == [("hello", 1), ("streams", 1)]
        lines.pipe_input(None, "hello again", timestamp=500)
        lines.pipe_input(None, None, timestamp=600)
        assert counts.is_empty()
        lines.pipe_input(None, "hello", timestamp=1000)
        assert counts.read_key_values_to_map() == {"again": 1, "hello": 3, "streams": 1}
        assert dict(driver.get_state_store("Counts").all()) == {"again": 1, "hello": 3, "streams": 1}


def test_the_description_is_the_one_of_the_documents() -> None:
    assert build(StreamsBuilder()).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: Source (topics: [lines])\n"
        "      --> Process\n"
        "    Processor: Process (stores: [Counts])\n"
        "      --> Sink\n"
        "      <-- Source\n"
        "    Sink: Sink (topic: word-counts)\n"
        "      <-- Process\n\n"
    )
