"""Types of SQL's columns from schemas of Avro, JSON Schema and Protobuf."""

from __future__ import annotations
