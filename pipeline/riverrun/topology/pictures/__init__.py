"""Pictures of a topology: its `graph`, laid out (`places`) for SVG and a page, or as Mermaid."""

from __future__ import annotations
