"""A task on an executor, in bounded runs and in dry runs. Imports no pyspark.

`work` holds the messages between the driver and the task. `inputs` reads records, merged in an order that does not depend on
their writers' speeds (`spilling`). `wall_clock` handles punctuations, `reporting` counts records, and `absent_brokers` waits
for brokers that are away.
"""

from __future__ import annotations
