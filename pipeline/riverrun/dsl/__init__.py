"""The DSL: `StreamsBuilder`, streams, tables and their options.

The DSL builds a `Topology` and is not needed afterwards: it knows neither tasks nor hosts nor Kafka. May import the built-in
operators, the topology and the layers below.
"""

from __future__ import annotations
