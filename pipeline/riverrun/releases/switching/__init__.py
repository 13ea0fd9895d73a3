"""Makes a version live in place of another, and keeps public tables equal to what the live version says.

`switch` does it between bounded runs, `live_switch` while workers run. `marks` holds running versions at one offset vector.
`corrections` writes to public tables.
"""

from __future__ import annotations
