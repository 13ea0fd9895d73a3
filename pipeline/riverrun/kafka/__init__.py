"""Kafka: the only package that opens a connection to a broker, and the embedded broker.

`consumer`, `producer` and `ranges` read and write records. `admin` sends all other requests: through `requests`, and to the
leaders of partitions through `leaders`. `groups` and `membership` are for consumer groups. `librdkafka` has names of its
library that are not public. `embedded` is the broker for development, tests and the demo.

This package raises the errors of `riverrun.errors`; only `riverrun.kafka.errors` translates client libraries' exceptions.
Knows neither topologies nor tasks nor stores. May import values only.
"""

from __future__ import annotations
