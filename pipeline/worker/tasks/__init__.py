"""The tasks of a stream thread: `task_manager` owns them, and `task_states` has their states.

`state_updater` takes tasks over and restores them, `commits` commits them when they are due (`commit_schedule`), and
`standby_updater` follows tasks that run elsewhere. `task_counts` counts what tasks do.
"""

from __future__ import annotations
