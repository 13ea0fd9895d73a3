"""Kafka: the only package that opens a connection to a broker, and the embedded broker.

`door` makes all clients, and `clients` lists what is called of them. `consumer`, `producer` and `ranges` read and write
records. `admin` sends all other requests, through `requests`. `groups` and `membership` are for consumer groups. Each client
library has one module for uses of its private parts: `librdkafka` and `kafka_python`. `embedded` is the broker for
development, tests and the demo.

This package raises the errors of `riverrun.errors`; only `riverrun.kafka.errors` translates client libraries' exceptions.
Knows neither topologies nor tasks nor stores. May import values only.
"""

from __future__ import annotations
