"""The live host: instances that share the tasks of an application, or one process that runs them all.

A `streams_instance` is a member of its `group`, whose leader assigns tasks to all. Its `stream_threads` are
processes. Each (`stream_thread`) runs `tasks`. `worker` runs all tasks in one process, without a group. Meanwhile,
stores answer `queries`.
"""

from __future__ import annotations
