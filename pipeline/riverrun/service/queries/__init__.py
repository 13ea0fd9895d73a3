"""Queries of stores: finds the owner of a key (`routing`), asks it (`peers`), and renders what it finds."""

from __future__ import annotations
