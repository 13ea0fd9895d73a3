"""The times that a task keeps: of its punctuations, of its operators (`observed_times`), and of committed offsets."""

from __future__ import annotations
