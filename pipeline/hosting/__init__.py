"""Tasks against Kafka: what the worker and the Spark host share.

Who takes a task over does it in one order, always: fence the predecessor, read the committed offsets, read the changelogs'
ends, restore, process. May import the runtime, Kafka and RocksDB state; knows neither the DSL nor pyspark.
"""

from __future__ import annotations
