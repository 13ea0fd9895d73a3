"""Entries of stores in parts: pending writes, segments by time, retention, entries that are recent, and the order of use."""

from __future__ import annotations
