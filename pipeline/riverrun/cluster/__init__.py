"""Instances of an application as long-lived tasks of a Spark cluster.

`deployment` starts and watches them; `instance` runs in each task and imports no pyspark; `channel` connects the two.
This package may import the worker, its HTTP service, the Spark host, and packages below these.
"""

from __future__ import annotations
