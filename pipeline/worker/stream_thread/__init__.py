"""A stream thread: one process that runs some of an instance's tasks.

`process` obeys the supervisor (`protocol`), `stream_thread` has the loop. `task_manager` owns the tasks: `state_updater`
takes them over and restores them, `fetching` fetches for them, `commits` commits them; `standby_updater` follows others.
`known_topics` says what tasks are made of, `figures` what they have done; `open_stores` finds what can be asked of them.
"""

from __future__ import annotations
