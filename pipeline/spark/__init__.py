"""The bounded host: runs an application over ranges of offsets, as Spark tasks.

`ranges` says which offsets, `job` plans levels and hands tasks to Spark, `executor` runs one task and imports no pyspark. May
import hosting, the runtime, Kafka and what lies below; knows neither the worker nor the DSL.
"""

from __future__ import annotations
