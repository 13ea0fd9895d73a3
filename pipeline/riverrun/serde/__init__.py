"""Serdes: one `Serde` per type, byte for byte compatible with Kafka's own serializers.

May import values only.
"""

from __future__ import annotations
