"""Tasks against Kafka: what the worker and the Spark host share.

Who takes a task over (`owned_task`) does it in one order, always: fence the predecessor, read the committed offsets, read the
changelogs' ends, restore (`restoring`), process. Others may follow its changelogs meanwhile (`standby_tasks`). What is run is
an `application`: `prepare` creates its topics. `control_topic` is where hosts and commands note things down.

May import the runtime, Kafka and RocksDB state; knows neither the DSL nor pyspark.
"""

from __future__ import annotations
