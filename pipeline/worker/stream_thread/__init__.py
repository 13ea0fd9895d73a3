"""A stream thread: one process that runs some of an instance's tasks.

`stream_process` follows the orders of its supervisor (`protocol`), `running_tasks` does the work: tasks come (`arrivals`), are
fetched for (`fetching`), process (`turns`) and commit (`commits`).
"""

from __future__ import annotations
