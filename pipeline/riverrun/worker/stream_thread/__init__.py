"""A stream thread: one process that runs some of an instance's tasks.

`process` obeys the instance (`protocol`), and `stream_thread` has the loop. The loop shares time between tasks,
and does what else is due (`upkeep`). `figures` reports the work of tasks, and finds open stores for queries.
"""

from __future__ import annotations
