"""Serdes on a schema registry: Avro, Protobuf and JSON Schema, on Confluent's own client.

May import serdes and values. The packages of the extra `schemas` are imported when a serde is made.
"""

from __future__ import annotations
