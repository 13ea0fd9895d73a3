"""The embedded broker: what commands, tests and the demo start on this machine, beside the clients and without one.

`broker` runs Apache Kafka itself, whose libraries `artifacts` fetches; `process` tells whether one that was started before
runs still.
"""

from __future__ import annotations
