"""The bounded host: runs an application over ranges of offsets as Spark tasks. Its outputs and stores can be DataFrames.

`ranges` says which offsets, `session` makes the Spark session, `columns` says what bytes become in frames. `bounded_runs`
commit what they process, `dry_runs` return it as frames, and state stores are read as frames (`store_frames`). Below these,
`planning` cuts a run into slices and steps, `tasks` is what a task is on an executor, and `engine` is Spark itself.

May import hosting, the runtime, Kafka and what lies below; knows neither the worker nor the DSL.
"""

from __future__ import annotations
