"""The embedded broker, which commands, tests and the demo start on this machine.

`broker` runs Apache Kafka; `artifacts` fetches its libraries.
"""

from __future__ import annotations
