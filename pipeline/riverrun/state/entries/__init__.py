"""Parts of stores: pending writes, segments by time, retention, recent entries, and the order of use."""

from __future__ import annotations
