"""Serdes: one `Serde` per type, byte for byte compatible with Kafka's own serializers."""

from __future__ import annotations
