"""The bounded host: runs an application over ranges of offsets, as Spark tasks, and gives its outputs and stores as DataFrames.

`ranges` says which offsets, `slices` cuts them, `unfinished` knows what is left of runs that were interrupted. `job` goes
through slices and `levels` in the steps of `schedule`, and `attempts` hands tasks to Spark; `executor` runs one task and
imports no pyspark. `dry_runs` commit nothing, `stores` are read as frames; `columns` says what bytes become in these.

May import hosting, the runtime, Kafka and what lies below; knows neither the worker nor the DSL.
"""

from __future__ import annotations

from pipeline.spark.dry_runs import dry_run
from pipeline.spark.stores import read_store

__all__ = ["dry_run", "read_store"]
