"""Kafka: the only package that opens a connection to a broker, and the embedded broker.

Everything here raises the errors of `pipeline.errors`; client libraries' exceptions cross `pipeline.kafka.errors` and
nothing else. Knows neither topologies nor tasks nor stores. May import values only.
"""

from __future__ import annotations
