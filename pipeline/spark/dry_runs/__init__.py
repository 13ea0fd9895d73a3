"""A dry run: processes a range of offsets and commits nothing; what it would write is there as DataFrames (`outputs`).

Levels go one after the other, and what one hands to the next stays in Spark (`handing_over`); `dry_task` runs one task, and
imports no pyspark.
"""

from __future__ import annotations
