"""Consumer groups: membership, members, positions and coordinators."""

from __future__ import annotations
