"""The control topic: which version of an application is live, and may publish."""

from __future__ import annotations
