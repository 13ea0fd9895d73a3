"""The live host: instances that share the tasks of an application, or one process that runs them all.

An `instance` is a member of its `group`, whose leader sends orders to all. Its stream threads are processes
(`stream_thread`). Each runs `tasks`, fetches their `inputs`, and keeps them close to others in event time (`alignment`).
`worker` runs all tasks in one process, without a group. Meanwhile, stores answer `queries`.

May import hosting, the runtime, Kafka and lower layers; knows neither Spark nor the DSL.
"""

from __future__ import annotations
