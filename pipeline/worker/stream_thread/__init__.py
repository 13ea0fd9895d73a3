"""A stream thread: one process that runs some of an instance's tasks.

`stream_process` follows the orders of its supervisor (`protocol`), `running_tasks` does the work: tasks come (`arrivals`), are
fetched for (`fetching`), process (`turns`), commit (`commits`) and go (`departures`); others are only `followed`. What they are
made of is in `known_topics`, what they have done in `figures`, and what can be asked of them in `open_stores`.
"""

from __future__ import annotations
