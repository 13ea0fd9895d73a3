"""Differences of two topics or of two versions: found by key, listed for people, limited to a scope, and removed.

`difference` is the index on disk, `differ` fills it and makes topics equal. `rows` and `differing` show its rows.
"""

from __future__ import annotations
