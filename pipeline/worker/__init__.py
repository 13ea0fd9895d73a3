"""The live host: instances that share the tasks of an application, or one process that runs them all.

An instance is a `supervisor`: a member of its group (`membership`), one of which gives orders to all (`leadership`, by
`assignment`), with stream threads (`processes`), each a process (`stream_process`). That runs its tasks (`running_tasks`):
they come (`arrivals`), are fetched for (`fetching`), process (`turns`) and commit (`commits`). `worker` does the same alone.
What they say to each other is in `protocol`, what stores are asked in `queries`.

May import hosting, the runtime, Kafka and what lies below; knows neither Spark nor the DSL.
"""

from __future__ import annotations
