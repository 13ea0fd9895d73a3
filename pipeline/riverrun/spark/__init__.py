"""The bounded host: runs an application over ranges of offsets as Spark tasks. Its outputs and stores can be DataFrames.

`ranges` resolves offsets, `session` makes the Spark session, and `columns` turns bytes into columns of frames.
`bounded_runs` commit their work, a `dry_run` returns its outputs as frames, and `stores` reads state stores as frames. Below
these, `slices` cuts a run, `runs` records it, and `tasks` holds a task's parts on an executor.
"""

from __future__ import annotations
