"""The built-in operators: record in, records out. No I/O, no clock of their own, no knowledge of the graph.

Each module holds one family. Null keys, null values, late records and result timestamps follow Kafka Streams; the
class a rule comes from is named where the rule stands. May import the processor and state contracts and values.
"""

from __future__ import annotations
