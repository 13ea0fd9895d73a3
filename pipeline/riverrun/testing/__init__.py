"""The in-memory host, shipped to users: `TopologyTestDriver` with input and output topics, and `MockProcessorContext`.

It runs the tasks of the worker and the Spark host without a broker. May import the runtime, memory state and the layers
below; knows neither the DSL nor Kafka. `Cluster`, for tests of whole projects, is loaded on first use: its
room, `riverrun.simulation`, knows all.

>>> from riverrun import Consumed, Produced, STRING, StreamsBuilder
>>> from riverrun.testing import TopologyTestDriver
>>> builder = StreamsBuilder()
>>> builder.stream("in", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))
>>> with TopologyTestDriver(builder.build()) as driver:
...     driver.input_topic("in", STRING, STRING).pipe_input("k", "hello", timestamp=5)
...     driver.output_topic("out", STRING, STRING).read_record()
Record(key='k', value='HELLO', timestamp=5, headers=())
"""

from __future__ import annotations

import typing

from riverrun.runtime.recorded_answers import LookupAnswer
from riverrun.testing.contexts import CapturedForward, CapturedPunctuator, MockProcessorContext
from riverrun.testing.driver import TopologyTestDriver
from riverrun.testing.topics import TestInputTopic, TestOutputTopic
from riverrun.testing.watching import ChangedValueWarning, KeyBytesWarning

if typing.TYPE_CHECKING:
    from riverrun.simulation.cluster import Cluster, ClusterHost
    from riverrun.simulation.faults import Fault
# Only at run time, as in `riverrun`: the cluster loads hosts and clients of Kafka, which tests of topologies do without.
else:

    def __getattr__(name: str) -> object:
        """Load the cluster in memory on first use."""
        if name in {"Cluster", "ClusterHost"}:
            from riverrun.simulation import cluster  # noqa: PLC0415 - as above

            return getattr(cluster, name)
        if name == "Fault":
            from riverrun.simulation.faults import Fault  # noqa: PLC0415 - as above

            return Fault
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)


__all__ = [
    "CapturedForward",
    "CapturedPunctuator",
    "ChangedValueWarning",
    "Cluster",
    "ClusterHost",
    "Fault",
    "KeyBytesWarning",
    "LookupAnswer",
    "MockProcessorContext",
    "TestInputTopic",
    "TestOutputTopic",
    "TopologyTestDriver",
]
