"""Access to Spark itself, independent of the jobs that run on it.

`failures` translates Spark's exceptions, `executor_errors` carries this project's errors from executors to the driver, and
`text_rows` carries their results. `java_classes` speeds up the start of sessions. `databases` sends statements to databases
through a session's JVM, or its server's.
"""

from __future__ import annotations
