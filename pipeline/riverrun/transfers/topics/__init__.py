"""Records of topics for people: read, written as lines of text, and selected by SQL in this process."""

from __future__ import annotations
