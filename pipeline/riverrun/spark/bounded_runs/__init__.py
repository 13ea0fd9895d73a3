"""A bounded run: processes a range of offsets and commits it, with one Spark task for each task of the application.

`job` goes through slices, and `attempts` plans the work of each step and submits it to Spark. `executor` runs one task and
imports no pyspark; `packing` packs its records for other levels.
"""

from __future__ import annotations
