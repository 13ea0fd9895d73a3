"""The bounded host: runs an application over ranges of offsets as Spark tasks. Its outputs and stores can be DataFrames.

`ranges` resolves offsets, `session` makes the Spark session, and `columns` turns bytes into columns of frames.
`bounded_runs` commit their work, `dry_runs` return their outputs as frames, and `store_frames` reads state stores as frames.
Below these, `planning` cuts a run into slices and steps, `tasks` holds a task's parts on an executor, and `engine` is Spark
itself.

May import hosting, the runtime, Kafka and packages below these; imports neither the worker nor the DSL.
"""

from __future__ import annotations
