"""Keeps tasks close to each other in event time while the application is behind, and warns of late records."""

from __future__ import annotations
