"""Spark itself, whatever runs on it.

`failures` are what Spark raises, `executor_errors` what of that is ours, `text_rows` results of executors. `java_classes` makes
sessions start sooner, and `databases` are reached by a session's JVM, or its server's.
"""

from __future__ import annotations
