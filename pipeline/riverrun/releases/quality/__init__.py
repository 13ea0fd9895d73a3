"""Judges versions by their expectations: a candidate before it becomes live, and the live version while it runs.

May import differences and versions; it makes no version live.
"""

from __future__ import annotations
