"""Millrace: Kafka Streams' model in Python, live and in batch, from the same code.

This package has everything that authors of topologies need, and the front door to running them: `Millrace`, which is
loaded on first use. Each host has a package: `pipeline.testing` (in memory), `pipeline.worker` (long-running),
`pipeline.spark` (bounded).

Examples:
    >>> from pipeline import Consumed, Produced, STRING, StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))
    >>> print(builder.build().describe())
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [in])
          --> KSTREAM-MAPVALUES-0000000001
        Processor: KSTREAM-MAPVALUES-0000000001 (stores: [])
          --> KSTREAM-SINK-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Sink: KSTREAM-SINK-0000000002 (topic: out)
          <-- KSTREAM-MAPVALUES-0000000001
    <BLANKLINE>
    <BLANKLINE>
"""

from __future__ import annotations

import typing

from pipeline.dsl.branching import Branched, BranchedKStream
from pipeline.dsl.builder import StreamsBuilder
from pipeline.dsl.cogroup import CogroupedKStream, SessionWindowedCogroupedKStream, TimeWindowedCogroupedKStream
from pipeline.dsl.emit_strategy import EmitStrategy
from pipeline.dsl.grouped_streams import KGroupedStream, SessionWindowedKStream, TimeWindowedKStream
from pipeline.dsl.grouped_tables import KGroupedTable
from pipeline.dsl.kstream import KStream
from pipeline.dsl.ktable import GlobalKTable, KTable
from pipeline.dsl.options import (
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Printed,
    Produced,
    Repartitioned,
    StreamJoined,
    TableJoined,
)
from pipeline.dsl.suppressed import BufferConfig, Suppressed
from pipeline.errors import (
    BrokerError,
    ConfigError,
    DeserializationError,
    ProcessingError,
    RangeError,
    SerializationError,
    StateError,
    StreamsError,
    TopologyError,
)
from pipeline.processor.api import (
    Cancellable,
    Processor,
    ProcessorContext,
    PunctuationType,
    ValueTransformerWithKey,
)
from pipeline.processor.drops import DropReason
from pipeline.processor.fixed_key import FixedKeyProcessor, FixedKeyProcessorContext, FixedKeyRecord
from pipeline.processor.handlers import (
    DeserializationExceptionHandler,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProducerRecord,
    ProductionExceptionHandler,
    Response,
    SerializationExceptionOrigin,
    dead_letter_queue_record,
)
from pipeline.processor.metrics import MetricName, Sensor, StreamsMetrics
from pipeline.processor.stats import RecordingLevel
from pipeline.processor.timestamps import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from pipeline.records import (
    AutoOffsetReset,
    ConsumerRecord,
    Headers,
    OffsetVector,
    Record,
    TopicPartition,
    ValueAndTimestamp,
    VersionedRecord,
)
from pipeline.schemas.avro.serde import Avro
from pipeline.schemas.json_schema import JsonSchema
from pipeline.schemas.protobuf.serde import Protobuf
from pipeline.serde.api import Serde
from pipeline.serde.json import JSON
from pipeline.serde.primitives import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, LONG, SHORT, STRING, UUID
from pipeline.serde.windowed import session_windowed, windowed
from pipeline.state.api import StoreBuilder
from pipeline.state.declared.builders import Stores
from pipeline.state.declared.suppliers import StoreSupplier
from pipeline.state.store_types import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore
from pipeline.topology.topology import Topology
from pipeline.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
    Windows,
)

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DOUBLE",
    "FLOAT",
    "INTEGER",
    "JSON",
    "LONG",
    "SHORT",
    "STRING",
    "UUID",
    "AutoOffsetReset",
    "Avro",
    "Branched",
    "BranchedKStream",
    "BrokerError",
    "BufferConfig",
    "Cancellable",
    "CogroupedKStream",
    "ConfigError",
    "Consumed",
    "ConsumerRecord",
    "DeserializationError",
    "DeserializationExceptionHandler",
    "DropReason",
    "EmitStrategy",
    "ErrorHandlerContext",
    "FailOnInvalidTimestamp",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "Grouped",
    "Headers",
    "JoinWindows",
    "Joined",
    "JsonSchema",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyValueStore",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "MetricName",
    "Millrace",
    "Named",
    "OffsetVector",
    "Printed",
    "ProcessingError",
    "ProcessingExceptionHandler",
    "Processor",
    "ProcessorContext",
    "Produced",
    "ProducerRecord",
    "ProductionExceptionHandler",
    "Protobuf",
    "PunctuationType",
    "RangeError",
    "Record",
    "RecordingLevel",
    "Repartitioned",
    "Response",
    "Sensor",
    "Serde",
    "SerializationError",
    "SerializationExceptionOrigin",
    "SessionStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "StateError",
    "StoreBuilder",
    "StoreSupplier",
    "Stores",
    "StreamJoined",
    "StreamsBuilder",
    "StreamsError",
    "StreamsMetrics",
    "Suppressed",
    "TableJoined",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TopicPartition",
    "Topology",
    "TopologyError",
    "UnlimitedWindows",
    "UsePartitionTimeOnInvalidTimestamp",
    "ValueAndTimestamp",
    "ValueTransformerWithKey",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WallclockTimestampExtractor",
    "Window",
    "WindowStore",
    "Windowed",
    "Windows",
    "dead_letter_queue_record",
    "session_windowed",
    "windowed",
]

__version__: str
"""The installed version of Millrace, as in `pyproject.toml`."""

if typing.TYPE_CHECKING:
    from pipeline.project.millrace import Millrace
else:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Load the slow attributes on first use: the version, and the classes that run applications."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - as above

            return version("millrace")
        if name == "Millrace":
            from pipeline.project.millrace import Millrace  # noqa: PLC0415 - as above

            return Millrace
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
