"""Stores, which processors read and write, above backends that keep bytes in memory or in RocksDB.

A store (`stores`) buffers its writes since the last commit, and returns them as changelog records. It forgets them once
the backend has them (`memory`, `rocksdb`). `entries` and `segments` are parts of stores. `store_types` is what processors see
of them, `api` what tasks and backends share with them. May import serdes and values; imports neither tasks nor Kafka.
"""

from __future__ import annotations
