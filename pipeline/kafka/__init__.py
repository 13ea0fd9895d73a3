"""Kafka: the only package that opens a connection to a broker, and the embedded broker.

`consumer`, `producer` and `ranges` read and write records. `admin` asks everything else: by `requests`, and the leaders of
partitions by `leaders`. `membership` is that in a group. `embedded` is the broker for development, tests and the demo.

Everything here raises the errors of `pipeline.errors`; client libraries' exceptions cross `pipeline.kafka.errors` and
nothing else. Knows neither topologies nor tasks nor stores. May import values only.
"""

from __future__ import annotations
