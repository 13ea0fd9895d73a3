"""User code named by settings: attributes of modules, or functions that travel with their code to other processes."""

from __future__ import annotations
