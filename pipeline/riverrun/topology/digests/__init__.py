"""Digests of a topology and of the user's functions in it, alike in all versions of Python."""

from __future__ import annotations
