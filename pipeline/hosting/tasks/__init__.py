"""Starts tasks, commits them, follows them as standbys, and publishes snapshots of them."""

from __future__ import annotations
