"""State stores as DataFrames (`stores`), in their current state or at a point in the past (`past_stores`).

`store_rows` reads one partition on an executor, and imports no pyspark.
"""

from __future__ import annotations
