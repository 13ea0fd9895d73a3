"""Serdes on a schema registry: Avro, Protobuf and JSON Schema, on Confluent's own client.

May import serdes and values. Creating a serde imports the packages of the extra `schemas`.
"""

from __future__ import annotations
