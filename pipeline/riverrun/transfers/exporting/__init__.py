"""Exports (`exports`): turns records of a topic into files or into rows of a database (`jdbc`)."""

from __future__ import annotations
