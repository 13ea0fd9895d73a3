"""Descriptions of stores, from which tasks create them: `Stores`, suppliers, and the settings of changelog topics."""

from __future__ import annotations
