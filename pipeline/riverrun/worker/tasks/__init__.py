"""The tasks of a stream thread: `task_manager` owns them, and `task_states` defines their states.

`state_updater` takes tasks over and restores them. `commits` commits them when they are due (`commit_schedule`).
`standby_updater` follows tasks that run elsewhere, and `task_counts` counts the work of tasks.
"""

from __future__ import annotations
