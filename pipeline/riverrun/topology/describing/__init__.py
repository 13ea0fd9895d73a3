"""Kafka Streams' description of a topology, with its order of names."""

from __future__ import annotations
