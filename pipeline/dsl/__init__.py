"""The DSL: `StreamsBuilder`, streams, tables and their options.

It writes a `Topology` and is forgotten: it knows neither tasks nor hosts nor Kafka. May import the built-in operators,
the topology and what lies below.
"""

from __future__ import annotations
