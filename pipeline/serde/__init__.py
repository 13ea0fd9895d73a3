"""Bytes and values: one `Serde` per type, byte for byte what Kafka's own serializers write.

May import values only.
"""

from __future__ import annotations
