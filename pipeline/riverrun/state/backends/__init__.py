"""Backends that keep the bytes of stores, in memory or in RocksDB, and snapshots of them on a file store."""

from __future__ import annotations
