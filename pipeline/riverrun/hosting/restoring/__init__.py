"""Brings the local state of a task to the committed point, from snapshots and changelogs."""

from __future__ import annotations
