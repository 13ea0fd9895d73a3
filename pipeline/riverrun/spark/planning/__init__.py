"""The work of a run and its order, planned by the driver.

`slices` cuts a range, and `schedule` decides which levels of sub-topologies run at the same time. `runs` keeps the record of
runs, and `unfinished` computes the remaining work of interrupted runs.
"""

from __future__ import annotations
