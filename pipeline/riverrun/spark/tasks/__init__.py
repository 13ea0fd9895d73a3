"""A task on an executor, in bounded runs and in dry runs. Imports no pyspark.

`work` holds the messages between the driver and the task. `inputs` reads records, merged in an order that does not depend on
their writers' speeds (`spilling`), and `reporting` counts them.
"""

from __future__ import annotations
