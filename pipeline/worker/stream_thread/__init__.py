"""A stream thread: one process that runs some of an instance's tasks.

`process` obeys the supervisor (`protocol`), and `stream_thread` has the loop: it shares time between tasks (`time_slices`),
keeps them to the control topic (`rights`), and publishes snapshots (`regular_snapshots`). `figures` tells what tasks have done,
and `open_stores` finds what can be asked of them.
"""

from __future__ import annotations
