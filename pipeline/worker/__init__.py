"""The live host: instances that share the tasks of an application, or one process that runs them all.

An `instance` is a member of its `group`, one of which gives orders to all. It has stream threads, each a process that runs
tasks (`stream_thread`); `worker` runs all of them in one, without a group. What stores are asked meanwhile is in `questions`.

May import hosting, the runtime, Kafka and what lies below; knows neither Spark nor the DSL.
"""

from __future__ import annotations
