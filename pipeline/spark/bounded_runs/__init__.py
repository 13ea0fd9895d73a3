"""A bounded run: processes a range of offsets and commits it, a Spark task for each task of the application.

`job` goes through slices, `levels` says what is to be done in each step, and `attempts` hands it to Spark; `executor` runs one
task, whose records for other levels `packing` packs, and imports no pyspark. `progress` follows all this from outside.
"""

from __future__ import annotations
