"""Imports (`imports`): finds the new rows of a source, turns them into records, and writes these in parts, with progress."""

from __future__ import annotations
