"""Stores of every kind; `opening` opens the store that a builder describes.

Most are built on `core`, which keeps the last write of each key. `versioned` keeps an ordered log of every write over two
tables, and `buffer` encodes entries only at the commit: both keep their own pending writes.
"""

from __future__ import annotations
