"""Stores: what processors read and write, above backends that keep bytes in memory or in RocksDB.

A store keeps its writes since the last commit to itself (`core`), returns them as changelog records, and forgets them when the
backend has them. May import serdes and values; knows neither tasks nor Kafka.
"""

from __future__ import annotations
