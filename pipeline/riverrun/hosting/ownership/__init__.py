"""Decides which host may process an application, and fences the others."""

from __future__ import annotations
