"""A bounded run: processes a range of offsets and commits it, with one Spark task for each task of the application.

`job` goes through slices, `levels` plans the work of each step, and `attempts` submits it to Spark. `executor` runs one task
and imports no pyspark; `packing` packs its records for other levels. `progress` counts what is done.
"""

from __future__ import annotations
