"""Starts tasks, commits them, follows them as standbys, and publishes their snapshots."""

from __future__ import annotations
