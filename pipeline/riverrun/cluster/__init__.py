"""Instances of an application as long-lived tasks of a Spark cluster.

`deployment` starts and watches them; `instance` runs in each task, imports no pyspark, and has the messages between the two.
This package may import the worker, its HTTP service, the Spark host, and packages below these.
"""

from __future__ import annotations
