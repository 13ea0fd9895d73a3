"""A task on an executor, in a run that commits and in one that does not. Imports no pyspark.

`work` is what the driver sends to it and gets back. `inputs` are what it reads, merged in an order that does not depend on
their writers' speeds (`spilling`); `wall_clock` says what becomes of punctuations, and
`absent_brokers` waits for brokers that are away.
"""

from __future__ import annotations
