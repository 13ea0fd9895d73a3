"""The work of a run and its order; all of this is the driver's.

`slices` cuts a range, `schedule` says which levels of sub-topologies go at the same time. `runs` is the record of runs, and
`unfinished` knows what is left of those that were interrupted.
"""

from __future__ import annotations
