"""Riverrun: Kafka Streams' model in Python, live and in batch, from the same code.

This package has everything that authors of topologies need, and the front door to running them: `Riverrun`, which is
loaded on first use. Each host has a package: `riverrun.testing` (in memory), `riverrun.worker` (long-running),
`riverrun.spark` (bounded).

Examples:
    >>> from riverrun import Consumed, Produced, STRING, StreamsBuilder
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

import importlib
import typing

from riverrun.dsl.branching import Branched, BranchedKStream
from riverrun.dsl.builder import StreamsBuilder
from riverrun.dsl.cogroup import CogroupedKStream, SessionWindowedCogroupedKStream, TimeWindowedCogroupedKStream
from riverrun.dsl.grouped_streams import KGroupedStream
from riverrun.dsl.grouped_tables import KGroupedTable
from riverrun.dsl.kstream import KStream
from riverrun.dsl.ktable import GlobalKTable, KTable
from riverrun.dsl.options import (
    Consumed,
    EmitStrategy,
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
from riverrun.dsl.patterns import Pattern
from riverrun.dsl.suppressed import BufferConfig, Suppressed
from riverrun.dsl.windowed_streams import SessionWindowedKStream, TimeWindowedKStream
from riverrun.errors import (
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
from riverrun.processor.aggregates import (
    AggregateFunction,
    CollectList,
    CollectSet,
    Count,
    Earliest,
    Latest,
    Max,
    Mean,
    Min,
    Quantile,
    SubtractableAggregateFunction,
    Sum,
)
from riverrun.processor.api import (
    Cancellable,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    PunctuationType,
    ValueTransformerWithKey,
)
from riverrun.processor.expressions import Expression, col, lit
from riverrun.processor.handlers import (
    DeserializationExceptionHandler,
    DropReason,
    ErrorHandlerContext,
    ProcessingExceptionHandler,
    ProducerRecord,
    ProductionExceptionHandler,
    Response,
    SerializationExceptionOrigin,
    dead_letter_queue_record,
)
from riverrun.processor.key_timers import KeyTimers
from riverrun.processor.lookups import CachedLookup, Retry
from riverrun.processor.metrics import MetricName, Sensor, StreamsMetrics
from riverrun.processor.stats import RecordingLevel
from riverrun.processor.timestamps import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from riverrun.records import (
    AutoOffsetReset,
    ConsumerRecord,
    Headers,
    OffsetVector,
    Record,
    TopicPartition,
    ValueAndTimestamp,
    VersionedRecord,
)
from riverrun.schemas.avro.serde import Avro
from riverrun.schemas.json_schema import JsonSchema
from riverrun.schemas.protobuf import Protobuf
from riverrun.serde.api import Serde
from riverrun.serde.debezium import RowChange
from riverrun.serde.serdes import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, JSON, LONG, SHORT, STRING, UUID
from riverrun.serde.windowed import session_windowed, windowed
from riverrun.state.api import StoreBuilder
from riverrun.state.builders import Stores
from riverrun.state.store_types import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore
from riverrun.state.suppliers import StoreSupplier
from riverrun.topology.topology import Topology
from riverrun.windows import (
    CalendarWindows,
    CountWindows,
    JoinWindows,
    RollingWindows,
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
    "AggregateFunction",
    "AutoOffsetReset",
    "Avro",
    "Branched",
    "BranchedKStream",
    "BrokerError",
    "BufferConfig",
    "CachedLookup",
    "CalendarWindows",
    "Cancellable",
    "CogroupedKStream",
    "CollectList",
    "CollectSet",
    "ConfigError",
    "Consumed",
    "ConsumerRecord",
    "Count",
    "CountWindows",
    "DeserializationError",
    "DeserializationExceptionHandler",
    "DropReason",
    "Earliest",
    "EmitStrategy",
    "ErrorHandlerContext",
    "ExportSpec",
    "Expression",
    "FailOnInvalidTimestamp",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "Grouped",
    "Headers",
    "ImportSpec",
    "JoinWindows",
    "Joined",
    "JsonSchema",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyTimers",
    "KeyValueStore",
    "Latest",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "Max",
    "Mean",
    "MetricName",
    "Min",
    "Named",
    "OffsetVector",
    "Pattern",
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
    "Quantile",
    "RangeError",
    "Record",
    "RecordingLevel",
    "Repartitioned",
    "Response",
    "Retry",
    "Riverrun",
    "RollingWindows",
    "RowChange",
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
    "SubtractableAggregateFunction",
    "Sum",
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
    "col",
    "dead_letter_queue_record",
    "lit",
    "session_windowed",
    "windowed",
]

__version__: str
"""The installed version of Riverrun, as in `pyproject.toml`."""

if typing.TYPE_CHECKING:
    from riverrun.project.riverrun import Riverrun
    from riverrun.transfers.specs import ExportSpec, ImportSpec
# Only at run time: with a `__getattr__`, type checkers would accept any name.
else:
    _SLOW = {
        "ExportSpec": "riverrun.transfers.specs",
        "ImportSpec": "riverrun.transfers.specs",
        "Riverrun": "riverrun.project.riverrun",
    }

    def __getattr__(name: str) -> object:
        """Load the slow attributes on first use: the version, and the classes that run applications."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - as above

            return version("riverrun")
        if name in _SLOW:
            return getattr(importlib.import_module(_SLOW[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
