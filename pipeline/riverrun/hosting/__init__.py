"""Runs tasks against Kafka: the parts that the worker and the Spark host share.

A host runs an `application`; its function `prepare` creates internal topics. `tasks` starts tasks in one order (fence the
predecessor, read committed offsets, read the ends of changelogs, restore, process) and commits them. `restoring` brings local
state to the committed point, `inputs` finds where to read, and `ownership` says which host may process. In `control`, hosts and
commands record which version of an application is live.

May import the runtime, Kafka and RocksDB state; knows neither the DSL nor pyspark.
"""

from __future__ import annotations
