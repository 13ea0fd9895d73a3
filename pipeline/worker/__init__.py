"""The live host: a long-running process that owns all tasks of an application.

May import hosting, the runtime, Kafka and what lies below; knows neither Spark nor the DSL.
"""

from __future__ import annotations
