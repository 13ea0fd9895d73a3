"""Instances of an application as long-lived tasks of a Spark cluster.

`deployment` starts them, and stays; `instance` is what runs in each task and imports no pyspark; `channel` is how the two talk.
May import the worker, what it answers over HTTP, the Spark host, and what lies below.
"""

from __future__ import annotations
