"""The sections of `streams.toml`, with checks of their values.

Kafka Streams' own settings (`streams`) are parsed from their dotted names (`parsing`).
"""

from __future__ import annotations
