"""Stores: what processors read and write, above backends that keep bytes in memory or in RocksDB.

A store keeps its writes since the last commit to itself (`pending`), gives them as changelog records, and lets go of them
when the backend has them. May import serdes and values; knows neither tasks nor Kafka.
"""

from __future__ import annotations
