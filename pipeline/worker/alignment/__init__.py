"""Keeps tasks close to each other in event time while the application is behind, and warns where records are late."""

from __future__ import annotations
