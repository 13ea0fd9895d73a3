"""Stores of every kind, on top of one core; `opening` opens the one that a builder describes."""

from __future__ import annotations
