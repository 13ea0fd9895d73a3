"""A dry run: processes a range of offsets and commits nothing; its outputs are DataFrames (`outputs`).

Levels run one after the other, and records that one hands to the next stay in Spark (`handing_over`). `dry_task` runs one
task and imports no pyspark.
"""

from __future__ import annotations
