"""Stores of every kind, all built on `core`; `opening` opens the store that a builder describes."""

from __future__ import annotations
